"""Test erasure against a replayed journal, crashes, rollups, and a new secret."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import insert, select, update
from user_data_world import ROLLUPS, USER, by_user, canonical_rows, planted_world

from fairserve.platform.background.alarms import store
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import session_factory
from fairserve.platform.db.erasures import Erasure
from fairserve.platform.db.identity import Tenant
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.models import metadata
from fairserve.platform.db.usage import UsageState
from fairserve.platform.db.webhooks import WebhookEvent
from fairserve.platform.reporting.usage.retention import delete_before
from fairserve.platform.reporting.user_data import erasure as erasing


@pytest.fixture
def planted(management):
    return planted_world(management)


def test_replaying_the_journal_restores_nothing(planted):
    planted.erase()
    after = planted.dump()
    planted.write(*planted.mine)
    again = planted.dump()
    for name in after:
        assert canonical_rows(again[name]) == canonical_rows(after[name]), name


def test_a_running_call_is_pseudonymised_and_a_new_one_is_not(planted):
    pseudonym = planted.erase()["pseudonym"]
    (first, *_), (run, *_) = planted.mine
    late = replace(first, call_id="late", name="ann-late", parents=("ann-draft",))
    new_at = utc_now().timestamp() + 3600
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
    # The next erasure includes rows written after the first.
    done = planted.erase()
    assert (done["erased"]["calls"], done["pseudonym"]) == (0, pseudonym), "it is of the future"


def test_later_rows_are_erased_by_the_next_erasure(planted):
    first = planted.erase()
    now_at = utc_now().timestamp()
    call = replace(planted.mine[0][0], call_id="new", accepted_at=now_at, ended_at=now_at)
    planted.write([call])
    assert len(planted.export()["calls"]) == 1
    second = planted.erase()
    assert (second["erased"]["calls"], second["pseudonym"]) == (1, first["pseudonym"])
    assert planted.export()["calls"] == []


def test_an_alarm_that_ends_after_the_erasure_names_the_pseudonym(planted):
    with planted.sessions() as session:
        open_then = store.load_open(session)
    (alarm,) = (each for each in open_then if each.key[1::2] == (planted.one["id"], USER))
    pseudonym = planted.erase()["pseudonym"]
    alarm.resolved_at = utc_now().timestamp()
    with planted.sessions.begin() as session:
        store.save(session, [alarm])
        events = session.scalars(select(WebhookEvent).where(WebhookEvent.type == "alarm.resolved"))
        (event,) = events
    assert event.user_id == event.payload["data"]["user"] == pseudonym
    assert event.payload["data"]["text"].startswith(f"User {pseudonym} takes more than its share")


@pytest.mark.parametrize("step", ["_refusals", "_interactions", "_calls"])
def test_an_interrupted_erasure_is_finished_by_the_next(planted, monkeypatch, step):
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
    planted.write(*planted.mine)  # the journal is read again before the next request
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


def test_an_erasure_waits_for_the_journal(planted):
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


def test_rollups_without_raw_rows_are_pseudonymised(planted):
    planted.dump()
    with planted.sessions.begin() as session:
        for name in ("ledger_calls", "interactions", "throttling_events", "usage_dirty"):
            session.execute(metadata.tables[name].delete())
        session.execute(update(UsageState).values(raw_from_s=1 << 40))
    rollups = planted.rollups()
    first = planted.erase()["pseudonym"]
    assert by_user(planted, first) == {"usage_calls": 8, "usage_runs": 4, "usage_refusals": 2}
    # As many tokens again, later in the same quarter hours, become one row with the earlier ones.
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


def test_rewritten_rows_are_rolled_up_again(planted, monkeypatch):
    """A rollup step may have read the rows just before the change."""
    planted.dump()
    monkeypatch.setattr(erasing, "rename_user", lambda *arguments: None)
    pseudonym = planted.erase()["pseudonym"]
    planted.dump()
    assert by_user(planted, pseudonym) == {"usage_calls": 8, "usage_runs": 4, "usage_refusals": 2}


def test_a_rotated_secret_still_matches_erased_users(planted):
    planted.erase()
    rows = planted.management.platform.storage.rows
    secret = rows._hasher._secrets[0]
    rows._hasher = KeyHasher(b"another secret of the server's", secret)
    planted.write(*planted.mine)
    assert planted.export()["calls"] == []
    rows._hasher = KeyHasher(b"one more secret of the server's")
    planted.write(*planted.mine)
    assert len(planted.export()["calls"]) == 8, "nobody can match them without the secret"


def test_erasure_records_expire_with_the_ledger(engine):
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
