"""A user's data is exported completely, and after an erasure no table contains any of it."""

import json
from collections import Counter
from dataclasses import replace

import databases
import pytest
from sqlalchemy import select
from user_data_world import (
    KINDS,
    PERSONAL,
    ROLLUPS,
    USER,
    World,
    canonical,
    canonical_rows,
    escaped,
    iso,
    mark_everything,
    mentions,
    of_others,
    planted_world,
)

from fairserve.platform.db.ledger import LedgerInteraction
from fairserve.platform.db.models import metadata
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.reporting.user_data import repository
from fairserve.platform.serving.interactions import repository as runs
from fairserve.platform.serving.interactions.graph_view import graph_of
from fairserve.scheduling.events import ContractChanged, UserChanged


@pytest.fixture
def world(management):
    return World(management)


@pytest.fixture
def planted(management):
    return planted_world(management)


@databases.ON_POSTGRESQL
def test_an_export_has_exactly_the_rows_of_the_user(planted):
    found = planted.export()
    assert found["user"] == USER
    assert {name: len(found[name]) for name in KINDS} == {
        "settings": 1,
        "contracts": 1,
        "interactions": 4,
        "open_interactions": 1,
        "calls": 8,
        "refusals": 2,
        "programs": 1,
        "responses": 1,
        "conversations": 1,
        "webhook_events": 7,
        "alarms": 1,
        "exports": 1,
        "audit": 1,
    }
    assert planted.foreign_app["id"] not in json.dumps(found)
    assert "bob" not in json.dumps(found)
    expected = planted.dump()
    for name, table in (
        ("settings", "end_users"),
        ("contracts", "contracts"),
        ("interactions", "interactions"),
        ("open_interactions", "open_interactions"),
        ("calls", "ledger_calls"),
        ("refusals", "throttling_events"),
        ("webhook_events", "webhook_events"),
        ("alarms", "alarms"),
        ("exports", "report_exports"),
    ):
        rows = [
            row
            for row in expected[table]
            if row["tenant_id"] == planted.one["id"]
            and row.get("user_id", row.get("external_id")) == USER
        ]
        assert canonical(found[name]) == canonical(json.loads(json.dumps(rows, default=iso)))
    (program,) = found["programs"]
    assert program["declaration"] == {"nodes": [{"prompt": "dear ann"}]}
    assert len(program["steps"]) == 251
    assert {step["record"].get("output") for step in program["steps"]} == {"dear ann", None}
    assert planted.ledger.flushed == 1


def test_pages_lose_and_repeat_nothing(planted, monkeypatch):
    whole = planted.export()
    monkeypatch.setattr(repository.pages, "__kwdefaults__", {"until": None, "rows": 2})
    paged = planted.export()
    assert {name: paged[name] for name in KINDS} == {name: whole[name] for name in KINDS}


def test_only_the_owner_may_export_or_erase(planted):
    call = planted.management.call
    own, admin = planted.export(), planted.management.admin_key
    assert planted.export(admin, tenant=planted.one["id"])["calls"] == own["calls"]
    for method in ("GET", "DELETE"):
        call(planted.app["api_key"], method, "/v1/user-data", status=403, user=USER)
        call(admin, method, "/v1/user-data", status=400, user=USER)
        call(admin, method, "/v1/user-data", status=404, user=USER, tenant="tn_none")
        tenant = planted.one["id"]
        call(
            planted.other["api_key"],
            method,
            "/v1/user-data",
            status=404,
            user=USER,
            tenant=tenant,
        )
    nobody = planted.export(user="nobody")
    assert all(nobody[name] == [] for name in KINDS)


def test_an_erasure_by_a_tenant_keeps_blocks(planted):
    admin = planted.management.admin_key
    path = f"/admin/users/{planted.one['id']}/{escaped(USER)}"
    planted.management.call(admin, "PUT", path, {"blocked": True})
    call, query = planted.management.call, {"user": USER}
    rejected = call(planted.one["api_key"], "DELETE", "/v1/user-data", status=409, **query)
    assert rejected["error"]["code"] == "user_blocked"
    assert planted.export()["calls"]
    call(admin, "DELETE", "/v1/user-data", tenant=planted.one["id"], **query)
    assert not planted.export()["calls"]


def test_responses_must_not_be_cached(planted):
    answer = planted.management.client.get(
        "/v1/user-data",
        params={"user": USER},
        headers={"Authorization": f"Bearer {planted.one['api_key']}"},
    )
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"


@databases.ON_POSTGRESQL
def test_an_erasure_leaves_nothing_of_the_user(planted):
    before = planted.dump()
    found = mentions(before, *PERSONAL)
    assert {place.partition(".")[0] for place in found} == {
        "end_users",
        "contracts",
        "interactions",
        "open_interactions",
        "ledger_calls",
        "throttling_events",
        "programs",
        "program_steps",
        "stored_responses",
        "stored_conversations",
        "stored_conversation_items",
        "audit_log",
        "usage_calls",
        "usage_runs",
        "usage_refusals",
        "webhook_events",
        "alarms",
        "report_exports",
        "report_export_parts",
    }
    # So that a scan of all tables finds only what the erasure left.
    with planted.sessions.begin() as session:
        for name in ("end_users", "contracts", "interactions", "ledger_calls", "audit_log"):
            table = metadata.tables[name]
            session.execute(table.delete().where(table.c.tenant_id == planted.other["id"]))
        for name in (
            "open_interactions",
            "throttling_events",
            "programs",
            "stored_responses",
            "stored_conversations",
            "webhook_events",
            "alarms",
            "report_exports",
            *ROLLUPS,
        ):
            table = metadata.tables[name]
            session.execute(table.delete().where(table.c.tenant_id == planted.other["id"]))
        for name in (
            "interactions",
            "open_interactions",
            "ledger_calls",
            "throttling_events",
            "programs",
            "stored_responses",
            "stored_conversations",
            "webhook_events",
            "alarms",
        ):
            table = metadata.tables[name]
            session.execute(table.delete().where(table.c.user_id == "bob"))
        for name in ROLLUPS:
            session.execute(metadata.tables[name].delete())
        session.execute(metadata.tables["usage_dirty"].delete())
        mark_everything(session)
    sums = [planted.usage(*groups) for groups in (("tenant",), ("app",), ("day", "app"))]
    rollups = planted.rollups()
    done = planted.erase()
    # The journal is read again.
    planted.write((), (), [planted.opened(planted.one, planted.app, USER)])
    at_once = planted.dump(rolled_up=False)
    assert mentions(at_once, *PERSONAL, "ann-final", "ann-refused") == []
    assert planted.rollups() == rollups
    assert done["erased"] == {
        "settings": 1,
        "contracts": 1,
        "programs": 1,
        "responses": 1,
        "conversations": 1,
        "exports": 3,
        "audit": 1,
        "interactions": 4,
        "open_interactions": 1,
        "calls": 8,
        "refusals": 2,
        "webhook_events": 7,
        "alarms": 1,
    }
    after = planted.dump()
    assert mentions(after, *PERSONAL, "ann-final", "ann-refused") == []
    assert sums == [planted.usage(*groups) for groups in (("tenant",), ("app",), ("day", "app"))]
    assert {row["user_id"] for row in after["ledger_calls"]} == {done["pseudonym"]}
    assert {row["user_id"] for row in after["interactions"]} == {done["pseudonym"]}
    assert {row["user_id"] for row in after["throttling_events"]} == {done["pseudonym"]}
    kept = Counter((row["call_id"], row["cost"], row["outcome"]) for row in after["ledger_calls"])
    assert kept == Counter(
        (row["call_id"], row["cost"], row["outcome"])
        for row in before["ledger_calls"]
        if row["user_id"] == USER and row["tenant_id"] == planted.one["id"]
    )
    (entry,) = [row for row in after["audit_log"] if row["action"] == "user.erase"]
    assert (entry["target"], entry["tenant_id"]) == (done["pseudonym"], planted.one["id"])
    assert planted.programs.cancelled == [(planted.one["id"], USER)]
    control = planted.management.control.events
    assert UserChanged(planted.one["id"], USER) in control
    assert ContractChanged("user", planted.one["id"], user=USER) in control


@databases.ON_POSTGRESQL
def test_data_of_others_is_kept(planted):
    before = of_others(planted.dump(), planted)
    assert all(before[name] for name in ("ledger_calls", "interactions", "programs", "end_users"))
    pseudonym = planted.erase()["pseudonym"]
    assert of_others(planted.dump(), planted) == before
    other = planted.export(planted.other["api_key"])
    assert len(other["calls"]) == 4
    assert pseudonym not in json.dumps(other)


def test_an_erasure_keeps_the_graph_of_a_run(planted):
    planted.erase()
    with planted.sessions() as session:
        run_id = session.scalars(
            select(LedgerInteraction.id).where(
                LedgerInteraction.app_id == planted.app["id"],
                LedgerInteraction.user_id != "bob",
                LedgerInteraction.calls == 2,
            )
        ).one()
    calls = runs.calls(planted.sessions, planted.one["id"], planted.app["id"], run_id)
    graph = graph_of(run_id, "complete", "", calls, [])
    first, second = (call.name for call in calls)
    assert graph.edges == [(first, second)]
    assert {node.agent for node in graph.nodes} == {None}
    with planted.sessions() as session:
        ids = session.scalars(
            select(LedgerInteraction.id).where(LedgerInteraction.user_id != "bob")
        ).all()
    assert len(set(ids)) == len(ids), "the same run of two apps is not the same afterwards"


def test_a_second_erasure_finds_nothing(planted):
    first = planted.erase()
    dump = planted.dump()
    second = planted.erase()
    assert set(second["erased"].values()) == {0}
    assert second["pseudonym"] == first["pseudonym"]
    now = planted.dump()
    for name in ("ledger_calls", "interactions", "throttling_events", "webhook_events"):
        assert canonical_rows(now[name]) == canonical_rows(dump[name])
    unknown = planted.erase(user="nobody")
    assert set(unknown["erased"].values()) == {0}
    assert unknown.keys() == second.keys()
    export = planted.export()
    assert all(export[name] == [] for name in KINDS)


def test_every_table_with_user_ids_is_covered():
    named = {
        table.name
        for table in metadata.sorted_tables
        if {"user_id", "user", "external_id"} & {column.name for column in table.columns}
    }
    kinds = {kind.model.__tablename__ for kind in repository.KINDS} - {"audit_log"}
    assert named == kinds | set(ROLLUPS)


@databases.ON_POSTGRESQL
def test_any_valid_user_id_is_erased(world):
    for number, user in enumerate(("a b", "x" * 200, "ä/ö?&=#%00+", "😀")):
        (call, *_), _ = world.records(world.one, world.app, user)
        world.write([replace(call, call_id=f"c{number}")])
        assert len(world.export(user=user)["calls"]) == 1, user
        assert world.erase(user=user)["erased"]["calls"] == 1
        world.write([replace(call, call_id=f"c{number}")])
        assert world.export(user=user)["calls"] == []
    for bad in ({"user": ""}, {"user": "x" * 201}, {"user": "\x00nul"}, {}):
        world.management.rejected(world.one["api_key"], "GET", "/v1/user-data", param="user", **bad)


def test_the_audit_log_keeps_fields_without_user_ids(world):
    management = world.management
    path = f"/admin/users/{world.one['id']}/ann"
    management.call(management.admin_key, "PUT", path, {"weight": 3.0})
    with world.sessions.begin() as session:
        world_entry = session.scalars(select(AuditEntry).where(AuditEntry.target == "ann")).one()
        world_entry.before = {"users": ["ann", "bob"]}
    pseudonym = world.erase(user="ann")["pseudonym"]
    with world.sessions() as session:
        entry = session.get(AuditEntry, world_entry.id)
        assert (entry.target, entry.before) == (pseudonym, None)
        assert entry.after["weight"] == 3.0


def test_calls_without_a_user_are_erased_and_the_app_history_kept(world):
    """Such calls are stored under the id of the app."""
    app_id = world.app["id"]
    (call, *_), _ = world.records(world.one, world.app, app_id)
    world.write([call])
    done = world.erase(user=app_id)["erased"]
    assert (done["calls"], done["audit"]) == (1, 0)
    with world.sessions() as session:
        assert session.scalars(select(AuditEntry).where(AuditEntry.target == app_id)).all()
