"""Test ``/admin/throttling`` and the usage routes over HTTP."""

from dataclasses import replace
from datetime import UTC, datetime

from call_records import call_record
from sqlalchemy import select

from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.tenancy.system.in_force import load_system
from fairserve.scheduling.registry import SYSTEMS

START = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
PATH = "/admin/throttling"


def parameters(answer):
    return {item["name"]: item for item in answer["parameters"]}


def test_server_settings_apply_until_changed(management):
    found = management.call(management.admin_key, "GET", PATH)
    assert (found["version"], found["system"], found["author"]) == (0, "fairserve", None)
    assert (found["throttle"], found["feeder"], found["router"]) == ("oit", "wsc", "cache_aware")
    share = parameters(found)["resident_share"]
    assert (share["value"], share["default"]) == (0.9, 0.9)
    for item in found["parameters"]:
        assert item["description"]
    assert management.call(management.admin_key, "GET", f"{PATH}/history")["total"] == 0


def test_a_change_is_versioned_audited_and_applied(management):
    change = {"system": "fairserve", "parameters": {"feeder.weight_cap": 2, "resident_share": 0.5}}
    found = management.call(management.admin_key, "PUT", PATH, change)
    assert (found["version"], found["after_worker_restart"]) == (1, [])
    assert parameters(found)["feeder.weight_cap"]["value"] == 2
    assert parameters(found)["feeder.weight_cap"]["default"] == "inf"
    ((system, options),) = management.control.applied
    assert system == "fairserve"
    assert SYSTEMS[system].with_options(options).resident_share == 0.5
    found = management.call(management.admin_key, "PUT", PATH, {"system": "rpm-7"})
    assert (found["version"], parameters(found)["throttle.limit"]["value"]) == (2, 7)
    assert "feeder.weight_cap" not in parameters(found)
    read = management.call(management.admin_key, "GET", PATH)
    assert read == {name: found[name] for name in read}
    history = management.call(management.admin_key, "GET", f"{PATH}/history")
    assert [(item["version"], item["system"]) for item in history["items"]] == [
        (2, "rpm-7"),
        (1, "fairserve"),
    ]
    assert history["items"][1]["parameters"] == change["parameters"]
    with management.state.session_factory() as session:
        entry = session.scalars(select(AuditEntry).order_by(AuditEntry.at.desc())).first()
        assert load_system(session, management.state.settings.tuning).throttle_options == {
            "limit": 7
        }
    assert entry.before == change
    assert entry.after == {"system": "rpm-7", "parameters": {}}
    assert entry.actor == management.admin_key[: len(entry.actor)]


def test_infinity_survives_json(management):
    change = {"system": "fairserve", "parameters": {"feeder.weight_cap": "inf"}}
    found = management.call(management.admin_key, "PUT", PATH, change)
    assert parameters(found)["feeder.weight_cap"]["value"] == "inf"
    assert management.control.applied[0][1]["feeder.weight_cap"] == float("inf")


WRONG_CHANGES = [
    ({"system": "nothing"}, 400, "system"),
    ({"system": "rpm-0"}, 400, "system"),
    ({"system": "fairserve", "parameters": {"nothing": 1}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"feeder.nothing": 1}}, 400, "parameters"),
    ({"system": "fcfs", "parameters": {"throttle.window_s": 1}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"feeder.max_bypass": 16}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"throttle.user_limit": "x"}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"throttle.user_limit": 1.5}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"throttle.user_limit": -1}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"throttle.user_limit": True}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"resident_share": 2}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"resident_share": "nan"}}, 400, "parameters"),
    ({"system": "fairserve", "parameters": {"low_watermark": 9}}, 400, "parameters"),
    ({"system": "fcfs", "parameters": {"feeder.x": ["a"]}}, 400, "parameters.feeder.x"),
    ({"system": "fcfs", "parameters": {"feeder.x": "a" * 101}}, 400, "parameters.feeder.x"),
    ({"system": "fairserve", "policy": "oit"}, 400, "policy"),
    ({"parameters": {}}, 400, "system"),
    ({"system": "fairserve", "expected_version": 3}, 409, "expected_version"),
]


def test_an_invalid_change_is_rejected_and_changes_nothing(management):
    for body, status, param in WRONG_CHANGES:
        answer = management.call(management.admin_key, "PUT", PATH, body, status=status)
        assert answer["error"]["param"] == param, (body, answer)
    assert management.control.applied == []
    assert management.call(management.admin_key, "GET", PATH)["version"] == 0


def test_settings_that_need_a_worker_restart_are_named(management):
    change = {"system": "fairserve", "parameters": {"local.quantum": 900, "resident_share": 0.2}}
    found = management.call(management.admin_key, "PUT", PATH, change)
    assert found["after_worker_restart"] == ["local.quantum"]
    found = management.call(management.admin_key, "PUT", PATH, {"system": "fcfs"})
    assert found["after_worker_restart"] == ["local"]


def call(number, **more):
    base = call_record(
        f"c{number}",
        tenant="tn_a",
        app="app_a",
        interaction_id="run",
        outcome="refused",
        accepted_at=START + number,
        refusal_reason="overloaded_user_limit",
        refusal_scope="user",
        refusal_limit=3,
    )
    return replace(base, **more)


def test_rejections_are_listed_newest_first_with_filters(management):
    records = [
        call(0),
        call(1, tenant="tn_b", app="app_b"),
        call(2, user="v", refusal_reason="overloaded_app_limit", refusal_scope="app"),
        call(3, outcome="completed"),
    ]
    with management.state.session_factory.begin() as session:
        upsert_calls(session, records)

    def listed(**query):
        found = management.call(management.admin_key, "GET", f"{PATH}/events", **query)
        return [item["call_id"] for item in found["items"]], found["total"]

    assert listed() == (["c2", "c1", "c0"], 3)
    assert listed(limit=1, offset=1) == (["c1"], 3)
    assert listed(tenant="tn_b") == (["c1"], 1)
    assert listed(app="app_a", user="v") == (["c2"], 1)
    assert listed(reason="overloaded_user_limit") == (["c1", "c0"], 2)
    since = datetime.fromtimestamp(START + 1, UTC).isoformat()
    assert listed(since=since) == (["c2", "c1"], 2)
    assert listed(until=since) == (["c0"], 1)
    for query in (
        {"since": "2026-01-01T00:00:00"},
        {"before": since},
        {"user": "nul\x00"},
        {"interaction_id": "nul\x00"},
        {"scope": "model"},
    ):
        param = next(iter(query))
        management.rejected(management.admin_key, "GET", f"{PATH}/events", param=param, **query)


def test_usage_over_http(management):
    tenant = management.new_tenant("acme")
    app = management.new_app(tenant)
    mine = {"tenant": tenant["id"], "app": app["id"], "outcome": "completed", "input_tokens": 7}
    with management.state.session_factory.begin() as session:
        upsert_calls(
            session,
            [
                call(0, **mine),
                call(1, **mine | {"user": "v", "accepted_at": START + 86_400}),
                call(2, **mine | {"charged": False}),
                call(3, app="app_gone", tenant=tenant["id"]),
                call(4),
            ],
        )
    assert roll_up(management.state.session_factory)
    total = management.call(app["api_key"], "GET", "/v1/usage")["sums"]
    assert (total["calls"], total["uncharged_calls"], total["input_tokens"]) == (2, 1, 14)
    found = management.call(tenant["api_key"], "GET", "/v1/usage", group_by="app,user")
    assert [(row["app"], row["user"], row["calls"]) for row in found["items"]] == sorted(
        [(app["id"], "u", 1), (app["id"], "v", 1), ("app_gone", "u", 1)]
    )
    day = {"from": "2026-03-02", "to": "2026-03-02", "group_by": "day"}
    found = management.call(tenant["api_key"], "GET", "/v1/usage", **day)
    assert [(row["day"], row["calls"]) for row in found["items"]] == [("2026-03-02", 1)]
    gone = management.call(tenant["api_key"], "GET", "/v1/usage", app="app_gone")
    assert gone["sums"]["refused"] == 1
    everything = management.call(management.admin_key, "GET", "/admin/usage", group_by="tenant")
    assert [row["tenant"] for row in everything["items"]] == sorted(["tn_a", tenant["id"]])
    for param, query in (
        ("from", {"from": "2026-03-02", "to": "2026-03-01"}),
        ("group_by.0", {"group_by": "colour"}),
        ("group_by", {"group_by": "day,day"}),
        ("from", {"from": "yesterday"}),
        ("days", {"days": 3}),
    ):
        management.rejected(tenant["api_key"], "GET", "/v1/usage", param=param, **query)
