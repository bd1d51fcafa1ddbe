"""The preview of a quota over HTTP: the ledger's calls of its subject, within a bound, scoped."""

import pytest
from call_records import call_record

from fairserve.platform.base.clock import utc_s
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.tuning import quota_preview
from fairserve.throttling.quotas.periods import parse_duration


@pytest.fixture
def world(management):
    """Return two tenants with an app each, of which the first made calls in the last hour."""
    found = []
    for name in ("one", "other"):
        tenant = management.new_tenant(name)
        app = management.call(
            tenant["api_key"],
            "POST",
            "/v1/apps",
            {"name": name, "profile": {"stages": [{"input_tokens": 1, "output_tokens": 1}]}},
            status=201,
        )
        found.append((tenant, app))
    return found


def write(management, tenant, app, count, **fields):
    """Write calls that arrived a second apart, ten minutes ago."""
    at = int(utc_s()) - 600
    made = [
        call_record(
            f"{fields.get('prefix', 'c')}{number}",
            **{
                "tenant": tenant["id"],
                "app": app["id"],
                "user": "ann",
                "interaction_id": f"{fields.get('prefix', 'c')}{number}",
                "accepted_at": at + number,
                "input_tokens": 60,
                "system_tokens": 10,
                "output_tokens": 30,
                **{name: value for name, value in fields.items() if name != "prefix"},
            },
        )
        for number in range(count)
    ]
    with management.platform.sessions.begin() as session:
        upsert_calls(session, made)


def preview(management, key, status=200, **query):
    return management.call(key, "GET", "/v1/quotas/preview", status=status, **query)


def test_each_subject_is_previewed_with_its_calls(management, world):
    (one, app), (other, other_app) = world
    write(management, one, app, 8)
    write(management, one, app, 2, prefix="bob", user="bob")
    write(management, one, app, 3, prefix="no", outcome="refused", input_tokens=0, output_tokens=0)
    write(management, one, app, 5, prefix="old", accepted_at=utc_s() - 4000)
    write(management, other, other_app, 4, prefix="foreign")
    key, limit = one["api_key"], {"rpm_limit": 3}
    found = preview(management, key, **limit, tpm_limit=500)
    assert (found["accepted"], found["rejected"], found["whole"]) == (10, 3, True)
    assert found["limits"] == {
        "rpm_limit": {"limit": 3, "rejected": 7},
        "tpm_limit": {"limit": 500, "rejected": 5},
    }
    for query, accepted, rejected in (
        ({"app": app["id"]}, 10, 7),
        ({"each_user": True, "app": app["id"]}, 10, 5),
        ({"user": "bob"}, 2, 0),
        ({"user": "nobody"}, 0, 0),
    ):
        found = preview(management, key, **query, **limit)
        assert found["accepted"] == accepted, query
        assert found["limits"]["rpm_limit"]["rejected"] == rejected, query
    preview(management, key, 404, app=other_app["id"], **limit)
    preview(management, key, 404, tenant=other["id"], **limit)
    assert preview(management, other["api_key"], **limit)["accepted"] == 4
    assert preview(management, management.admin_key, tenant=one["id"])["accepted"] == 10
    path = f"/admin/users/{one['id']}/ann"
    management.call(management.admin_key, "PUT", path, {"contract": {"rpm_limit": 100}})
    found = preview(management, key, each_user=True, app=app["id"], rpm_limit=1)
    assert found["limits"]["rpm_limit"]["rejected"] == 1, "ann has a limit of her own"


def test_a_budget_is_previewed_with_what_was_spent_before(management, world):
    (one, app), (other, other_app) = world
    nano = 10**9
    write(management, one, app, 4, cost=nano)
    write(management, one, app, 1, prefix="old", cost=3 * nano, accepted_at=utc_s() - 7300)
    write(management, other, other_app, 9, prefix="foreign", cost=9 * nano)
    whole = (
        text
        for text in ("12mo", "7d", "11d")
        if parse_duration(text).bounds(utc_s())[0] < utc_s() - 7300
    )
    budget = {"budget_duration": next(whole), "app": app["id"]}
    for limit, count in ((7, 0), (6.5, 1), (4, 3), (0, 4)):
        found = preview(management, one["api_key"], max_budget=limit, **budget)
        assert found["limits"] == {"max_budget": {"limit": limit, "rejected": count}}, limit


def test_the_rows_are_bounded_and_the_answer_names_the_time(management, world, monkeypatch):
    (one, app), _ = world
    monkeypatch.setattr(quota_preview, "MAX_ROWS", 70)
    write(management, one, app, 80)
    found = preview(management, one["api_key"], rpm_limit=5)
    assert not found["whole"]
    assert found["accepted"] == 10, "the first minute of what is read fills the windows"
    assert found["limits"]["rpm_limit"]["rejected"] == 5, "five fit in each minute"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"each_user": True}, "each_user"),
        ({"app": "a", "user": "ann"}, "user"),
        ({"rpm_limit": 0}, "rpm_limit"),
        ({"max_budget": 1}, "max_budget"),
    ],
)
def test_an_invalid_query_names_its_field(management, world, query, field):
    error = preview(management, world[0][0]["api_key"], 400, **query)["error"]
    assert field in error["message"]
