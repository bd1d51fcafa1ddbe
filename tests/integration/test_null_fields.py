"""Null counts as absent for each optional field of a management body that is not nullable itself."""


def test_null_is_the_default_of_a_field_that_has_one(management):
    tenant = management.call(
        management.admin_key, "POST", "/admin/tenants", {"name": "acme", "weight": None}, status=201
    )
    profile = {
        "stages": [{"input_tokens": 9, "output_tokens": 3, "system_tokens": None}],
        "calls_per_interaction": None,
    }
    body = {"name": "chat", "profile": profile, "limits": None, "user_headers": None}
    app = management.call(tenant["api_key"], "POST", "/v1/apps", body, status=201)
    assert app["profile"]["calls_per_interaction"] == 1.0
    assert app["profile"]["stages"][0]["system_tokens"] == 0.0
    key = management.call(
        management.admin_key, "POST", "/admin/keys", {"name": "ops", "role": None}, status=201
    )
    assert key["role"] == "admin"


def test_null_still_resets_a_field_that_may_be_null(management):
    tenant = management.new_tenant("acme")
    app = management.new_app(tenant, user_headers=["x-a"])
    path, key = f"/v1/apps/{app['id']}", tenant["api_key"]
    assert management.call(key, "PATCH", path, {"user_headers": None})["user_headers"] == [
        "x-user-id"
    ]


def test_a_required_or_unknown_field_that_is_null_is_rejected(management):
    management.rejected(
        management.admin_key, "POST", "/admin/tenants", {"name": None}, param="name"
    )
    body = {"name": "acme", "wieght": None}
    management.rejected(management.admin_key, "POST", "/admin/tenants", body, param="wieght")
