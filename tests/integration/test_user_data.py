"""One end user's data: all of it is exported, and after an erasure no table holds any of it."""

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import JSON, String, func, insert, select, update

from fairserve.interactions.program import ProgramLimits
from fairserve.platform.control.record import CallRecord, InteractionRecord
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.engine import session_factory
from fairserve.platform.db.erasures import Erasure
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import Interaction, LedgerCall
from fairserve.platform.db.models import metadata
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.usage import UsageState
from fairserve.platform.interactions import repository as runs
from fairserve.platform.interactions.graph_view import graph_of
from fairserve.platform.programs import repository as programs
from fairserve.platform.programs.repository import Change, ProgramKey, SavedProgram
from fairserve.platform.usage.levels import TABLES
from fairserve.platform.usage.marks import mark_rows
from fairserve.platform.usage.repository import delete_before, upsert_calls, upsert_interactions
from fairserve.platform.usage.rollups import roll_up
from fairserve.platform.user_data import erasure as erasing
from fairserve.platform.user_data import repository
from fairserve.platform.user_data.endpoints import router
from fairserve.platform.user_data.pseudonyms import under_pseudonyms
from fairserve.scheduling.events import ContractChanged, UserChanged

USER = "Ann O'Neil/ä?&%#\"\\ <ann@example.org>"
PERSONAL = (USER, "ann@example.org", "letters-to-ann", "ann-draft", "anns-agent", "dear ann")
"""What was planted of the person, in every place that clients fill."""
ROLLUPS = ["usage_calls", "usage_runs", "usage_refusals"]
KINDS = ["settings", "contracts", "interactions", "calls", "refusals", "programs", "audit"]
CALL = CallRecord(
    call_id="",
    tenant="",
    app="",
    user=USER,
    model="m",
    interaction_id="letters-to-ann",
    stage=1,
    agent="anns-agent",
    outcome="completed",
    accepted_at=0.0,
    ended_at=0.0,
    input_tokens=10,
    output_tokens=3,
    service=16.0,
    cost=7,
    error="dear ann",
)


class Ledger:
    """Stands in for the ledger: says whether everything is written, and what came before."""

    def __init__(self):
        self.whole = True
        self.flushed = 0

    def flush(self, timeout_s):
        self.flushed += 1
        return self.whole


class Programs:
    """Stands in for the programs under way: remembers whose were to end."""

    def __init__(self):
        self.cancelled = []

    async def cancel_of_user(self, reason, tenant_id, user):
        self.cancelled.append((tenant_id, user))


class World:
    """Two tenants with the same user, and a neighbour in the first."""

    def __init__(self, management):
        self.management = management
        management.app.include_router(router)
        self.ledger = management.state.ledger = Ledger()
        self.programs = management.state.programs = Programs()
        self.sessions = management.state.session_factory
        self.one, self.other = management.tenant("one"), management.tenant("other")
        self.app = management.new_app(self.one)
        self.second_app = management.new_app(self.one, "second")
        self.foreign_app = management.new_app(self.other)
        self.began_at = utc_now().timestamp() - 100

    def write(self, calls, interactions=()):
        """As the ledger's thread does."""
        with self.sessions.begin() as session:
            calls, interactions = under_pseudonyms(
                session, self.management.hasher, calls, interactions
            )
            upsert_calls(session, calls)
            upsert_interactions(session, interactions)

    def records(self, tenant, app, user):
        """Two calls of a run, a refused one, another run, and their ends."""
        letters, alone = ("letters-to-ann", "alone") if user != "bob" else ("to-bob", "bobs")
        base = replace(CALL, tenant=tenant["id"], app=app["id"], user=user, interaction_id=letters)
        name = f"{app['id']}-{user[:3]}"
        at = self.began_at
        made = [
            replace(base, call_id=f"{name}-1", name="ann-draft", accepted_at=at, ended_at=at + 1),
            replace(
                base,
                call_id=f"{name}-2",
                name="ann-final",
                parents=("ann-draft",),
                stage=2,
                accepted_at=at + 2,
                ended_at=at + 3,
            ),
            replace(
                base,
                call_id=f"{name}-3",
                name="ann-refused",
                outcome="refused",
                accepted_at=at + 4,
                ended_at=at + 4,
                refusal_reason="overloaded_user_limit",
            ),
            replace(
                base,
                call_id=f"{name}-4",
                interaction_id=alone,
                outcome="failed",
                accepted_at=at + 5,
                ended_at=at + 6,
            ),
        ]
        ended = [
            InteractionRecord(
                run, base.tenant, base.app, user, "complete", at, at + 7, calls, 13 * calls, 0
            )
            for run, calls in ((letters, 2), (alone, 1))
        ]
        return made, ended

    def plant(self, tenant, app, user):
        """Rows of every kind; returns the records."""
        call = self.management.call
        call(
            self.management.admin,
            "PUT",
            f"/admin/users/{tenant['id']}/{escaped(user)}",
            {"weight": 2.0, "rpm": 90},
        )
        with self.sessions.begin() as session:
            session.merge(contract(tenant["id"], user))
            for entry in session.scalars(select(AuditEntry).where(AuditEntry.target == user)):
                entry.after = {"note": f"of {user}"}
            key = ProgramKey(tenant["id"], app["id"], f"letters-to-ann-{user}")
            programs.insert(
                session,
                SavedProgram(
                    key,
                    user,
                    {"nodes": [{"prompt": "dear ann"}]},
                    ProgramLimits(),
                    "running",
                    "",
                    datetime.fromtimestamp(self.began_at, UTC),
                ),
            )
            steps = {
                "nodes": {f"n{number}": {"output": "dear ann"} for number in range(250)},
                "tasks": {"n0": {"state": "done"}},
            }
            programs.apply(session, [Change(key, steps)])
        records = self.records(tenant, app, user)
        self.write(*records)
        return records

    def export(self, key=None, *, user=USER, **query):
        return self.management.call(
            key or self.one["api_key"], "GET", "/v1/user-data", user=user, **query
        )

    def erase(self, key=None, *, user=USER, **query):
        return self.management.call(
            key or self.one["api_key"], "DELETE", "/v1/user-data", user=user, **query
        )

    def usage(self, *groups):
        assert roll_up(self.sessions)
        rows = self.management.call(
            self.management.admin, "GET", "/admin/usage", group_by=",".join(groups)
        )
        return rows["items"], rows["sums"]

    def dump(self, *, rolled_up=True):
        """Every row of every table, as plain values, after what is marked was rolled up."""
        if rolled_up:
            assert roll_up(self.sessions)
        with self.sessions() as session:
            return {
                table.name: [row._asdict() for row in session.execute(select(table))]
                for table in metadata.sorted_tables
                if table.name != "usage_state"
            }

    def rollups(self):
        """What the rollups say of apps and tenants, which no erasure changes."""
        assert roll_up(self.sessions)
        with self.sessions() as session:
            return {
                table.table.name: [
                    row._asdict()
                    for row in session.execute(
                        select(table.table).where(~table.table.c.level.like("%_user"))
                    )
                ]
                for table in TABLES
            }


def contract(tenant_id, user):
    return Contract(
        tenant_id=tenant_id,
        scope="user",
        app_id="",
        user_id=user,
        rpm_limit=9,
        soft_end="warn",
        updated_at=utc_now(),
    )


def escaped(text):
    return "".join(f"%{byte:02x}" for byte in text.encode())


def texts_of(dump):
    """Every text of a dump, those within JSON too, with the place that it stands in."""
    for table in metadata.sorted_tables:
        for row in dump.get(table.name, ()):
            for column in table.columns:
                value = row[column.name]
                if isinstance(column.type, String) and value is not None:
                    yield f"{table.name}.{column.name}", value
                elif isinstance(column.type, JSON):
                    yield f"{table.name}.{column.name}", json.dumps(value, ensure_ascii=False)


def told(dump, *personal):
    """Where any of these texts stands; also as JSON writes it."""
    wanted = {*personal, *(json.dumps(text, ensure_ascii=False)[1:-1] for text in personal)}
    return sorted({place for place, text in texts_of(dump) if any(part in text for part in wanted)})


@pytest.fixture
def world(management):
    return World(management)


@pytest.fixture
def planted(world):
    """The user in two apps of one tenant, a neighbour, and the same user at another tenant."""
    world.mine = world.plant(world.one, world.app, USER)
    again = world.records(world.one, world.second_app, USER)
    world.write(*again)
    world.mine = (world.mine[0] + again[0], world.mine[1] + again[1])
    world.plant(world.one, world.app, "bob")
    world.plant(world.other, world.foreign_app, USER)
    return world


def of_others(dump, world):
    """The rows that are the neighbour's or the other tenant's, in an order of their own."""
    text = json.dumps([world.other["id"], world.foreign_app["id"]])
    return {
        name: canonical_rows(
            row
            for row in rows
            if any(
                value == "bob" or (isinstance(value, str) and len(value) > 9 and value in text)
                for value in row.values()
            )
        )
        for name, rows in dump.items()
    }


def test_an_export_has_every_row_of_the_user_and_of_nobody_else(planted):
    found = planted.export()
    assert found["user"] == USER
    assert {name: len(found[name]) for name in KINDS} == {
        "settings": 1,
        "contracts": 1,
        "interactions": 4,
        "calls": 8,
        "refusals": 2,
        "programs": 1,
        "audit": 1,
    }
    assert planted.foreign_app["id"] not in json.dumps(found)
    assert "bob" not in json.dumps(found)
    expected = planted.dump()
    for name, table in (
        ("settings", "end_users"),
        ("contracts", "contracts"),
        ("interactions", "interactions"),
        ("calls", "ledger_calls"),
        ("refusals", "throttling_events"),
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


def iso(value):
    return value.hex() if isinstance(value, bytes) else value.isoformat()


def mark_everything(session):
    """As if all raw rows had just been written."""
    for model, time in ((LedgerCall, "accepted_at"), (Interaction, "ended_at")):
        rows = session.execute(select(model.__table__))
        mark_rows(session, [row._asdict() for row in rows], time)


def canonical(rows):
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_pages_lose_and_repeat_nothing(planted, monkeypatch):
    whole = planted.export()
    monkeypatch.setattr(repository.pages, "__kwdefaults__", {"until": None, "rows": 2})
    paged = planted.export()
    assert {name: paged[name] for name in KINDS} == {name: whole[name] for name in KINDS}


def test_who_may_ask(planted):
    call = planted.management.call
    own, admin = planted.export(), planted.management.admin
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


def test_a_tenant_lifts_no_block_by_erasing(planted):
    path = f"/admin/users/{planted.one['id']}/{escaped(USER)}"
    admin = planted.management.admin
    planted.management.call(admin, "PUT", path, {"blocked": True})
    call, query = planted.management.call, {"user": USER}
    refused = call(planted.one["api_key"], "DELETE", "/v1/user-data", status=409, **query)
    assert refused["error"]["code"] == "user_blocked"
    assert planted.export()["calls"]
    call(admin, "DELETE", "/v1/user-data", tenant=planted.one["id"], **query)
    assert not planted.export()["calls"]


def test_answers_are_not_to_be_kept(planted):
    answer = planted.management.client.get(
        "/v1/user-data",
        params={"user": USER},
        headers={"Authorization": f"Bearer {planted.one['api_key']}"},
    )
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"


def test_after_an_erasure_nothing_of_the_person_is_left(planted):
    before = planted.dump()
    found = told(before, *PERSONAL)
    assert {place.partition(".")[0] for place in found} == {
        "end_users",
        "contracts",
        "interactions",
        "ledger_calls",
        "throttling_events",
        "programs",
        "program_steps",
        "audit_log",
        "usage_calls",
        "usage_runs",
        "usage_refusals",
    }
    # So that a scan of all tables finds only what the erasure left.
    with planted.sessions.begin() as session:
        for name in ("end_users", "contracts", "interactions", "ledger_calls", "audit_log"):
            table = metadata.tables[name]
            session.execute(table.delete().where(table.c.tenant_id == planted.other["id"]))
        for name in ("throttling_events", "programs", *ROLLUPS):
            table = metadata.tables[name]
            session.execute(table.delete().where(table.c.tenant_id == planted.other["id"]))
        for name in ("interactions", "ledger_calls", "throttling_events", "programs"):
            table = metadata.tables[name]
            session.execute(table.delete().where(table.c.user_id == "bob"))
        for name in ROLLUPS:
            session.execute(metadata.tables[name].delete())
        session.execute(metadata.tables["usage_dirty"].delete())
        mark_everything(session)
    sums = [planted.usage(*groups) for groups in (("tenant",), ("app",), ("day", "app"))]
    rollups = planted.rollups()
    done = planted.erase()
    at_once = planted.dump(rolled_up=False)
    assert told(at_once, *PERSONAL, "ann-final", "ann-refused") == []
    assert planted.rollups() == rollups
    assert done["erased"] == {
        "settings": 1,
        "contracts": 1,
        "programs": 1,
        "audit": 1,
        "interactions": 4,
        "calls": 8,
        "refusals": 2,
    }
    after = planted.dump()
    assert told(after, *PERSONAL, "ann-final", "ann-refused") == []
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


def test_what_is_not_the_users_stays(planted):
    before = of_others(planted.dump(), planted)
    assert all(before[name] for name in ("ledger_calls", "interactions", "programs", "end_users"))
    pseudonym = planted.erase()["pseudonym"]
    assert of_others(planted.dump(), planted) == before
    stranger = planted.export(planted.other["api_key"])
    assert len(stranger["calls"]) == 4
    assert pseudonym not in json.dumps(stranger)


def test_a_run_keeps_its_graph(planted):
    planted.erase()
    with planted.sessions() as session:
        run_id = session.scalars(
            select(Interaction.id).where(
                Interaction.app_id == planted.app["id"],
                Interaction.user_id != "bob",
                Interaction.calls == 2,
            )
        ).one()
    calls = runs.calls(planted.sessions, planted.one["id"], planted.app["id"], run_id)
    graph = graph_of(run_id, "complete", "", calls, [])
    first, second = (call.name for call in calls)
    assert graph.edges == [(first, second)]
    assert {node.agent for node in graph.nodes} == {None}
    with planted.sessions() as session:
        ids = session.scalars(select(Interaction.id).where(Interaction.user_id != "bob")).all()
    assert len(set(ids)) == len(ids), "the same run of two apps is not the same afterwards"


def test_a_second_erasure_finds_nothing(planted):
    first = planted.erase()
    dump = planted.dump()
    second = planted.erase()
    assert set(second["erased"].values()) == {0}
    assert second["pseudonym"] == first["pseudonym"]
    now = planted.dump()
    for name in ("ledger_calls", "interactions", "throttling_events"):
        assert canonical_rows(now[name]) == canonical_rows(dump[name])
    unknown = planted.erase(user="nobody")
    assert set(unknown["erased"].values()) == {0}
    assert unknown.keys() == second.keys()
    export = planted.export()
    assert all(export[name] == [] for name in KINDS)


def canonical_rows(rows):
    return sorted(json.dumps(row, sort_keys=True, default=iso) for row in rows)


def test_the_journal_read_again_brings_nothing_back(planted):
    planted.erase()
    after = planted.dump()
    planted.write(*planted.mine)
    again = planted.dump()
    for name in after:
        assert canonical_rows(again[name]) == canonical_rows(after[name]), name


def test_a_call_under_way_ends_under_the_pseudonym_and_a_new_one_is_the_users(planted):
    pseudonym = planted.erase()["pseudonym"]
    (first, *_), (run, *_) = planted.mine
    late = replace(first, call_id="late", name="ann-late", parents=("ann-draft",))
    new_at = utc_now().timestamp() + 1
    new = replace(first, call_id="new", accepted_at=new_at, ended_at=new_at + 1)
    opened = replace(run, opened_at=new_at, ended_at=new_at + 1)
    planted.write([late, new], [opened])
    with planted.sessions() as session:
        row = session.get(LedgerCall, "late")
        parent = session.get(LedgerCall, first.call_id)
        assert row.user_id == pseudonym
        assert row.parents == [parent.name]
        assert row.interaction_id == parent.interaction_id != first.interaction_id
        assert session.get(LedgerCall, "new").user_id == USER
        assert session.get(LedgerCall, "new").interaction_id == "letters-to-ann"
    found = planted.export()
    assert [len(found["calls"]), len(found["interactions"])] == [1, 1]
    # What came after the first erasure goes with the second.
    done = planted.erase()
    assert (done["erased"]["calls"], done["pseudonym"]) == (0, pseudonym), "it is of the future"


def test_what_came_after_an_erasure_goes_with_the_next(planted):
    first = planted.erase()
    now_at = utc_now().timestamp()
    call = replace(planted.mine[0][0], call_id="new", accepted_at=now_at, ended_at=now_at)
    planted.write([call])
    assert len(planted.export()["calls"]) == 1
    second = planted.erase()
    assert (second["erased"]["calls"], second["pseudonym"]) == (1, first["pseudonym"])
    assert planted.export()["calls"] == []


@pytest.mark.parametrize("step", ["_refusals", "_interactions", "_calls"])
def test_an_erasure_that_was_cut_off_is_finished_by_the_next(planted, monkeypatch, step):
    sums = planted.usage("tenant")
    monkeypatch.setattr(erasing.Rewriting._in_batches, "__defaults__", (1,))
    real = getattr(erasing.Rewriting, step)
    batches = []

    def breaks(self, session, page):
        batches.append(len(page))
        real(self, session, page)
        if len(batches) == 2:
            raise RuntimeError("the process ends here")

    monkeypatch.setattr(erasing.Rewriting, step, breaks)
    with pytest.raises(RuntimeError):
        planted.erase()
    assert batches == [1, 1]
    planted.write(*planted.mine)  # the journal is read again before anybody asks again
    monkeypatch.setattr(erasing.Rewriting, step, real)
    pseudonym = planted.erase()["pseudonym"]
    dump = planted.dump()
    for name, count, different_runs in (
        ("ledger_calls", 8, 4),
        ("throttling_events", 2, 2),
        ("interactions", 4, 4),
    ):
        mine = [
            row
            for row in dump[name]
            if row["tenant_id"] == planted.one["id"] and row["user_id"] != "bob"
        ]
        assert {row["user_id"] for row in mine} == {pseudonym}
        assert len(mine) == count
        assert len({row.get("interaction_id", row.get("id")) for row in mine}) == different_runs
    assert planted.usage("tenant") == sums


def test_no_row_changes_while_the_journal_is_not_in_the_database(planted):
    planted.ledger.whole = False
    before = planted.dump()
    for method in ("GET", "DELETE"):
        planted.management.call(
            planted.one["api_key"], method, "/v1/user-data", status=503, user=USER
        )
    now = planted.dump()
    changed = {name for name in now if now[name] != before[name]}
    assert changed == {"erasures", "audit_log"}, "it was begun, and holds for what comes"
    planted.ledger.whole = True
    assert planted.erase()["erased"]["calls"] == 8


def test_every_table_that_names_users_is_among_the_kinds():
    named = {
        table.name
        for table in metadata.sorted_tables
        if {"user_id", "user", "external_id"} & {column.name for column in table.columns}
    }
    kinds = {kind.model.__tablename__ for kind in repository.KINDS} - {"audit_log"}
    assert named == kinds | set(ROLLUPS)


def test_rollups_whose_raw_rows_are_gone_are_the_pseudonyms_too(planted):
    planted.dump()
    with planted.sessions.begin() as session:
        for name in ("ledger_calls", "interactions", "throttling_events", "usage_dirty"):
            session.execute(metadata.tables[name].delete())
        session.execute(update(UsageState).values(raw_from_s=1 << 40))
    rollups = planted.rollups()
    first = planted.erase()["pseudonym"]
    assert by_user(planted, first) == {"usage_calls": 8, "usage_runs": 4, "usage_refusals": 2}
    # As much again that came later in the same quarter hours becomes one row with what was there.
    with planted.sessions.begin() as session:
        for name in ROLLUPS:
            table = metadata.tables[name]
            of_app = (table.c.user_id == first, table.c.app_id == planted.app["id"])
            rows = session.execute(select(table).where(*of_app)).all()
            session.execute(insert(table), [row._asdict() | {"user_id": USER} for row in rows])
    planted.erase()
    assert by_user(planted, first) == {"usage_calls": 12, "usage_runs": 6, "usage_refusals": 3}
    assert by_user(planted, USER) == dict.fromkeys(ROLLUPS, 0)
    assert planted.rollups() == rollups


def test_what_is_rewritten_is_rolled_up_anew(planted, monkeypatch):
    """Also where a step of the rollups has just read the rows as they were."""
    planted.dump()
    monkeypatch.setattr(erasing, "rename_user", lambda *arguments: None)
    pseudonym = planted.erase()["pseudonym"]
    planted.dump()
    assert by_user(planted, pseudonym) == {"usage_calls": 8, "usage_runs": 4, "usage_refusals": 2}


def by_user(world, user):
    """How many calls, runs and refusals of the first tenant the quarter hours say a user had."""
    counted = {"usage_calls": "calls", "usage_runs": "complete", "usage_refusals": "count"}
    with world.sessions() as session:
        return {
            name: session.scalar(
                select(func.coalesce(func.sum(metadata.tables[name].c[column]), 0)).where(
                    metadata.tables[name].c.user_id == user,
                    metadata.tables[name].c.tenant_id == world.one["id"],
                    metadata.tables[name].c.level == "quarter_user",
                )
            )
            for name, column in counted.items()
        }


def test_any_id_that_a_call_may_name(world):
    """As the ledger holds it: without NUL, which is no character of a text in PostgreSQL."""
    for number, user in enumerate(("a\nb\tc", "x" * 200, "\x00nul", "ä/ö?&=#%00+ ", "😀")):
        (call, *_), _ = world.records(world.one, world.app, user)
        world.write([replace(call, call_id=f"c{number}")])
        assert len(world.export(user=user)["calls"]) == 1, user
        assert world.erase(user=user)["erased"]["calls"] == 1
        world.write([replace(call, call_id=f"c{number}")])
        assert world.export(user=user)["calls"] == []
    call = world.management.call
    for bad in ("", "x" * 201):
        response = world.management.client.get(
            "/v1/user-data",
            params={"user": bad},
            headers={"Authorization": f"Bearer {world.one['api_key']}"},
        )
        assert response.status_code == 422  # the whole application answers 400
    call(world.one["api_key"], "GET", "/v1/user-data", status=422)


def test_the_audit_log_keeps_what_does_not_name_the_user(world):
    management = world.management
    path = f"/admin/users/{world.one['id']}/ann"
    management.call(management.admin, "PUT", path, {"weight": 3.0})
    with world.sessions.begin() as session:
        world_entry = session.scalars(select(AuditEntry).where(AuditEntry.target == "ann")).one()
        world_entry.before = {"users": ["ann", "bob"]}
    pseudonym = world.erase(user="ann")["pseudonym"]
    with world.sessions() as session:
        entry = session.get(AuditEntry, world_entry.id)
        assert (entry.target, entry.before) == (pseudonym, None)
        assert entry.after["weight"] == 3.0


def test_calls_that_name_no_user_can_be_erased_and_the_apps_history_stays(world):
    """They are kept under the app's id."""
    app_id = world.app["id"]
    (call, *_), _ = world.records(world.one, world.app, app_id)
    world.write([call])
    done = world.erase(user=app_id)["erased"]
    assert (done["calls"], done["audit"]) == (1, 0)
    with world.sessions() as session:
        assert session.scalars(select(AuditEntry).where(AuditEntry.target == app_id)).all()


def test_a_rotated_secret_still_knows_who_was_erased(planted):
    planted.erase()
    management = planted.management
    secret = management.hasher._secrets[0]
    management.hasher = KeyHasher(b"another secret of the server's", secret)
    planted.write(*planted.mine)
    assert planted.export()["calls"] == []
    management.hasher = KeyHasher(b"one more secret of the server's")
    planted.write(*planted.mine)
    assert len(planted.export()["calls"]) == 8, "nobody can tell without the secret"


def test_erasures_go_with_the_ledger(engine):
    sessions = session_factory(engine)
    now = datetime(2026, 3, 1, tzinfo=UTC)
    with sessions.begin() as session:
        session.add(Tenant(id="tn_a", name="a", created_at=now))
        session.flush()
        for name, at in (("old", now - timedelta(days=2)), ("new", now)):
            session.add(
                Erasure(tenant_id="tn_a", user_hash=name, pseudonym=name, id_key="00", erased_at=at)
            )
    with sessions.begin() as session:
        assert delete_before(session, now - timedelta(days=1)) == 1
    with sessions() as session:
        assert session.scalars(select(Erasure.pseudonym)).all() == ["new"]
