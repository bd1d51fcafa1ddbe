"""Test tenants, apps, keys and users over HTTP."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from databases import ON_BOTH, ON_POSTGRESQL
from processes import eventually
from sqlalchemy import select, text

from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.db.identity import EndUser
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.scheduling.events import AppChanged, UserChanged, UserStopped
from fairserve.throttling.base import Limits

PROFILE = {
    "stages": [
        {"input_tokens": 100, "system_tokens": 20, "output_tokens": 30},
        {"input_tokens": 50, "output_tokens": 5},
    ],
    "calls_per_interaction": 4,
    "idle_timeout_s": 60,
}


def actions(management):
    with management.state.session_factory() as session:
        return list(session.scalars(select(AuditEntry.action).order_by(AuditEntry.at)))


def test_a_registered_app_is_published_to_control(management):
    tenant = management.new_tenant("acme")
    assert tenant["id"].startswith("tn_")
    assert tenant["api_key"].startswith("sk-fs-t-")
    body = {"name": "chat", "profile": PROFILE, "limits": {"user_rpm": 20, "app_rpm": 100}}
    app = management.call(tenant["api_key"], "POST", "/v1/apps", body, status=201)
    assert app["id"].startswith("app_")
    assert app["api_key"].startswith("sk-fs-p-")
    assert app["key"]["id"].startswith("key_")
    assert app["api_key"].startswith(app["key"]["prefix"])
    assert app["warnings"] == []
    profile = AppProfile(
        (StageProfile(100, 20, 30), StageProfile(50, 0, 5)), 4, 60, believed_tokens=4800.0
    )
    event = AppChanged(app["id"], profile, Limits(20, 100), version=1)
    assert management.control.events == [event]
    with management.state.session_factory() as session:
        assert load_control_events(session, LearningOptions()) == [event]
    read = management.call(tenant["api_key"], "GET", f"/v1/apps/{app['id']}")
    assert read == {name: app[name] for name in read}
    principal = asyncio.run(management.state.authenticator.authenticate(app["api_key"]))
    assert (principal.scope, principal.tenant_id, principal.app_id) == (
        "app",
        tenant["id"],
        app["id"],
    )


def test_only_an_admin_sets_the_weight_of_an_app(management):
    """Otherwise a tenant could take the share of other tenants for one of its apps."""
    tenant = management.new_tenant("acme")
    app = management.new_app(tenant)
    path, body = f"/v1/apps/{app['id']}", {"name": "b", "profile": PROFILE, "weight": 9}
    events = list(management.control.events)
    for method, where in (("POST", "/v1/apps"), ("PATCH", path)):
        sent = body if method == "POST" else {"weight": 9}
        error = management.call(tenant["api_key"], method, where, sent, status=403)["error"]
        assert error["param"] == "weight"
    assert management.control.events == events
    assert management.call(tenant["api_key"], "GET", path)["weight"] == 1.0
    changed = management.call(
        management.admin_key, "PATCH", path, {"weight": 9}, tenant=tenant["id"]
    )
    assert changed["weight"] == 9.0


def test_changes_of_an_app_are_stored_and_published(management):
    tenant = management.new_tenant("acme")
    app = management.new_app(tenant, limits={"user_rpm": 10, "app_rpm": 50})
    path, key = f"/v1/apps/{app['id']}", tenant["api_key"]
    changed = management.call(key, "PATCH", path, {"limits": {"user_rpm": None}})
    assert changed["limits"] == {
        "user_rpm": None,
        "app_rpm": 50,
        "new_users_per_minute": None,
        "new_users_in_force": None,
    }
    changed = management.call(key, "PATCH", path, {"profile": PROFILE, "name": "renamed"})
    assert (changed["name"], len(changed["profile"]["stages"])) == ("renamed", 2)
    assert management.control.events[-1].profile.calls_per_interaction == 4
    assert management.control.events[-1].limits == Limits(None, 50)
    assert management.call(key, "GET", path) == changed
    with management.state.session_factory() as session:
        assert load_control_events(session, LearningOptions()) == management.control.events[-1:]
    assert actions(management) == [
        "key.create",
        "tenant.create",
        "key.create",
        "app.create",
        "app.change",
        "app.change",
    ]


def test_the_default_idle_timeout_is_that_of_the_server(management):
    app = management.new_app(management.new_tenant("acme"))
    expected = management.state.settings.tenancy.interaction_idle_timeout_s
    assert app["profile"]["idle_timeout_s"] == expected


def test_a_limit_below_two_runs_is_allowed_with_a_warning(management):
    app = management.new_app(
        management.new_tenant("acme"), profile=PROFILE, limits={"user_rpm": 7, "app_rpm": 8}
    )
    assert [warning.split(",")[0] for warning in app["warnings"]] == ["user_rpm is 7"]


WHOLE = {"name": "a", "profile": PROFILE}
WRONG_APPS = [
    ({}, "name"),
    ({"name": "a"}, "profile"),
    (WHOLE | {"name": ""}, "name"),
    (WHOLE | {"name": "nul\x00"}, "name"),
    (WHOLE | {"name": "a" * 201}, "name"),
    (WHOLE | {"unknown": 1}, "unknown"),
    (WHOLE | {"profile": PROFILE | {"unknown": 1}}, "profile.unknown"),
    (WHOLE | {"profile": {"stages": []}}, "profile.stages"),
    (WHOLE | {"profile": {"stages": [PROFILE["stages"][0]] * 65}}, "profile.stages"),
    (
        WHOLE | {"profile": {"stages": [{"input_tokens": 0, "output_tokens": 0}]}},
        "profile.stages.0",
    ),
    (
        WHOLE | {"profile": {"stages": [{"input_tokens": -1, "output_tokens": 5}]}},
        "profile.stages.0",
    ),
    (WHOLE | {"profile": PROFILE | {"calls_per_interaction": 0}}, "profile"),
    (WHOLE | {"profile": PROFILE | {"idle_timeout_s": 0}}, "profile"),
    (WHOLE | {"limits": {"user_rpm": 0}}, "limits.user_rpm"),
    (WHOLE | {"limits": {"user_rpm": 1.5}}, "limits.user_rpm"),
    (WHOLE | {"limits": {"rpm": 1}}, "limits.rpm"),
]


def test_invalid_apps_are_rejected_and_change_nothing(management):
    tenant = management.new_tenant("acme")
    for body, param in WRONG_APPS:
        management.rejected(tenant["api_key"], "POST", "/v1/apps", body, param=param)
    assert management.control.events == []
    assert management.call(tenant["api_key"], "GET", "/v1/apps")["total"] == 0


@ON_BOTH
def test_names_are_unique_within_a_tenant(management):
    one, two = management.new_tenant("one"), management.new_tenant("two")
    taken = management.call(
        management.admin_key, "POST", "/admin/tenants", {"name": "one"}, status=409
    )["error"]
    assert f"POST /admin/tenants/{one['id']}/keys" in taken["message"]
    app = management.new_app(one, "chat")
    management.new_app(two, "chat")
    other = management.new_app(one, "search")
    error = management.call(
        one["api_key"], "PATCH", f"/v1/apps/{other['id']}", {"name": "chat"}, status=409
    )["error"]
    assert (error["param"], error["code"]) == ("name", "conflict")
    assert f"POST /v1/apps/{app['id']}/keys" in error["message"]
    management.call(one["api_key"], "PATCH", f"/v1/apps/{app['id']}", {"name": "chat"})


def test_lists_are_paged_in_a_stable_order(management):
    tenant = management.new_tenant("acme")
    ids = [management.new_app(tenant, f"app {number}")["id"] for number in range(5)]
    read = []
    for offset in range(0, 6, 2):
        page = management.call(tenant["api_key"], "GET", "/v1/apps", limit=2, offset=offset)
        assert (page["total"], page["limit"], page["offset"]) == (5, 2, offset)
        read += [item["id"] for item in page["items"]]
    assert read == ids
    for query in ({"limit": 0}, {"limit": 1001}, {"offset": -1}, {"page": 1}):
        management.rejected(tenant["api_key"], "GET", "/v1/apps", param=next(iter(query)), **query)


@ON_BOTH
def test_lists_are_searched_by_part_of_the_name(management):
    one, two = management.new_tenant("Acme 50%"), management.new_tenant("acme_5 of 50")
    for tenant, name in ((one, "Search"), (one, "chat"), (two, "research_2"), (two, "researcher")):
        management.new_app(tenant, name)

    def found(path, **query):
        page = management.call(management.admin_key, "GET", path, **query)
        names = [item["name"] for item in page["items"]]
        assert page["total"] >= len(names)
        return names

    assert found("/admin/tenants", name="ACME") == ["Acme 50%", "acme_5 of 50"]
    assert found("/admin/tenants", name="50%") == ["Acme 50%"], "no wildcard"
    assert found("/admin/tenants", name="e_5") == ["acme_5 of 50"]
    assert found("/admin/tenants", name="acme", deleted=True) == []
    assert found("/admin/apps", name="SEARCH") == ["Search", "research_2", "researcher"]
    assert found("/admin/apps", name="search", limit=1, offset=1) == ["research_2"]
    assert found("/admin/apps", name="h_2") == ["research_2"]
    assert found("/v1/apps", tenant=one["id"], name="search") == ["Search"]
    assert management.call(two["api_key"], "GET", "/v1/apps", name="chat")["total"] == 0
    for wrong in ("a\0", "x" * 300):
        for path in ("/admin/tenants", "/admin/apps"):
            management.rejected(management.admin_key, "GET", path, param="name", name=wrong)
        management.rejected(one["api_key"], "GET", "/v1/apps", param="name", name=wrong)
        clients = "/admin/clients"
        management.rejected(management.admin_key, "GET", clients, param="query", query=wrong)


def test_keys_are_added_listed_revoked_and_rotated(management):
    tenant = management.new_tenant("acme")
    app = management.new_app(tenant)
    key, path = tenant["api_key"], f"/v1/apps/{app['id']}/keys"
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    second = management.call(key, "POST", path, {"expires_at": later}, status=201)
    third = management.call(key, "POST", path, status=201)
    for plain in (app["api_key"], second["api_key"], third["api_key"]):
        management.call(plain, "GET", "/v1/usage")
    listed = management.call(key, "GET", path)
    assert [item["id"] for item in listed["items"]] == [app["key"]["id"], second["id"], third["id"]]
    assert all("api_key" not in item for item in listed["items"])
    assert all(item["last_used_at"] >= item["created_at"] for item in listed["items"])

    management.call(key, "DELETE", f"{path}/{third['id']}")
    management.call(key, "DELETE", f"{path}/{third['id']}")
    management.call(third["api_key"], "GET", "/v1/usage", status=401)
    management.call(key, "DELETE", f"{path}/key_unknown", status=404)

    kept = management.call(key, "POST", f"{path}/rotate", {"grace_s": 3600}, status=201)
    management.call(app["api_key"], "GET", "/v1/usage")
    last = management.call(key, "POST", f"{path}/rotate", status=201)
    for plain in (app["api_key"], second["api_key"], kept["api_key"]):
        management.call(plain, "GET", "/v1/usage", status=401)
    management.call(last["api_key"], "GET", "/v1/usage")
    valid = [
        item["id"]
        for item in management.call(key, "GET", path)["items"]
        if item["revoked_at"] is None
    ]
    assert valid == [last["id"]]


def test_user_settings_are_stored_and_published(management):
    tenant = management.new_tenant("acme")
    path = f"/admin/users/{tenant['id']}/team/zoé"
    found = management.call(management.admin_key, "PUT", path, {"weight": 2, "rpm": 5})
    assert (found["user"], found["weight"], found["rpm"], found["blocked"]) == (
        "team/zoé",
        2,
        5,
        False,
    )
    management.call(management.admin_key, "PUT", path, {"blocked": True})
    events = [
        UserChanged(tenant["id"], "team/zoé", 2.0, 5, False),
        UserChanged(tenant["id"], "team/zoé", 1.0, None, True),
    ]
    stopped = UserStopped(tenant["id"], "team/zoé")
    assert management.control.events == [*events, stopped]
    with management.state.session_factory() as session:
        assert load_control_events(session, LearningOptions()) == events[1:]
    listed = management.call(management.admin_key, "GET", "/admin/users", blocked=True)
    assert [item["user"] for item in listed["items"]] == ["team/zoé"]
    assert management.call(management.admin_key, "GET", "/admin/users", blocked=False)["total"] == 0
    for body in ({"weight": 0}, {"weight": "NaN"}, {"rpm": 0}, {"factor": 1}):
        management.rejected(management.admin_key, "PUT", path, body, param=next(iter(body)))
    management.call(management.admin_key, "PUT", "/admin/users/tn_none/u", {}, status=404)
    assert management.control.events == [*events, stopped]


def test_rolled_back_changes_are_not_published(management, monkeypatch):
    tenant = management.new_tenant("acme")

    def broken(*_, **__):
        raise RuntimeError("the answer cannot be built")

    monkeypatch.setattr("fairserve.platform.tenancy.apps.service.Apps.describe", broken)
    with pytest.raises(RuntimeError):
        management.new_app(tenant)
    monkeypatch.undo()
    assert management.control.events == []
    assert management.call(tenant["api_key"], "GET", "/v1/apps")["total"] == 0


@ON_POSTGRESQL
def test_a_user_that_two_change_at_a_time_is_in_control_as_in_the_database(management):
    tenant, admin = management.new_tenant("acme"), management.admin_key
    path, sessions = f"/admin/users/{tenant['id']}/ann", management.state.session_factory
    management.call(admin, "PUT", path, {"weight": 1.5})
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    def waits():
        with sessions() as session:
            return session.scalar(waiting)

    with ThreadPoolExecutor(1) as threads:
        with sessions.begin() as session:
            session.get(EndUser, (tenant["id"], "ann")).blocked = True
            session.flush()
            other = threads.submit(management.call, admin, "PUT", path, {"weight": 2.0})
            eventually(waits)
        other.result()
    stored, sent = management.call(admin, "GET", path), management.control.events[-1]
    assert (stored["weight"], stored["blocked"]) == (sent.weight, sent.blocked)
