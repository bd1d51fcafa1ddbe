"""Rollups equal the sums of the ledger's rows, in whatever order and however often they are made."""

from dataclasses import replace
from datetime import UTC, datetime

import databases
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, select, text
from usage_histories import (
    START,
    call_sums,
    calls,
    ended_again,
    rewritten,
    roll_up_uncommitted,
    runs,
)

from fairserve.platform.base.clock import utc_s
from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.db.usage import QUARTER_S, UsageCalls, UsageDirty, UsageRuns, UsageState
from fairserve.platform.db.usage_marks import mark, quarter_of
from fairserve.platform.reporting.usage import rollups
from fairserve.platform.reporting.usage.levels import DAY_S, TABLES, level
from fairserve.platform.reporting.usage.reconcile import compare, repair
from fairserve.platform.reporting.usage.renaming import rename_user
from fairserve.platform.reporting.usage.retention import (
    delete_before,
    delete_rollups_before,
    raw_rows_from,
)
from fairserve.platform.reporting.usage.rollups import roll_up

pytestmark = databases.ON_POSTGRESQL


def dump(session):
    """Return every row of the rollups, bytes included."""
    return [
        sorted(tuple(row) for row in session.execute(select(table.table)))
        for table in (rollup for rollup in TABLES)
    ]


def reset_rollups(session):
    """Delete the rollups, and mark every quarter hour."""
    for rollup in TABLES:
        session.execute(delete(rollup.table))
    quarters = set()
    for table, time in ((LedgerCall, "accepted_at"), (LedgerInteraction, "ended_at")):
        for row in session.scalars(select(table)):
            quarters.add((row.tenant_id, row.app_id, quarter_of(getattr(row, time))))
    mark(session, quarters)


@databases.ON_BOTH
@settings(
    max_examples=max(10, settings.default.max_examples // 5),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(0, 60),
    between=st.lists(st.booleans(), min_size=3, max_size=3),
)
@example(seed=1, count=40, between=[True, False, True])  # a failure of this test is not shrunk
def test_rollups_equal_the_sums_of_rewritten_raw_rows(sessions, seed, count, between):
    history, ended = calls(seed, count), runs(seed, count // 4)
    again, later = rewritten(history, seed), ended_again(ended, seed)
    with sessions() as session:  # never committed
        for part in zip(((history, []), ([], ended), (again, later)), between, strict=True):
            (some_calls, some_runs), now = part
            upsert_calls(session, some_calls)
            upsert_interactions(session, some_runs)
            if now:
                roll_up_uncommitted(session)
        roll_up_uncommitted(session)
        assert session.scalar(select(func.count()).select_from(UsageDirty)) == 0
        final = {record.call_id: record for record in (*history, *again)}.values()

        def key(record, span, detail):
            start = int(record.accepted_at) // span * span
            app = "" if detail == "tenant" else record.app
            user = record.user if detail == "user" else ""
            model = "" if detail == "tenant" else record.served_model or record.model
            return record.tenant, start, app, user, model

        for name, span in (("quarter", QUARTER_S), ("day", DAY_S)):
            for detail in ("user", "app", "tenant"):
                expected = call_sums(final, lambda r, s=span, d=detail: key(r, s, d))
                rows = session.scalars(select(UsageCalls).filter_by(level=level(name, detail)))
                found = {
                    (row.tenant_id, row.start_s, row.app_id, row.user_id, row.model): row
                    for row in rows
                }
                assert found.keys() == expected.keys()
                for each, sums in expected.items():
                    for column, value in sums.items():
                        assert getattr(found[each], column) == value, (column, each)
        ends = {run.interaction_id + run.tenant + run.app: run for run in (*ended, *later)}.values()
        for detail in ("user", "app", "tenant"):
            rows = session.scalars(select(UsageRuns).filter_by(level=level("day", detail))).all()
            assert sum(row.run_calls for row in rows) == sum(run.calls for run in ends)
            assert sum(row.complete for row in rows) == sum(r.state == "complete" for r in ends)
            wasted = sum(
                row.wasted_throttled + row.wasted_cancelled + row.wasted_failed + row.wasted_expired
                for row in rows
            )
            assert wasted == sum(run.wasted_tokens for run in ends)

        incremental = dump(session)
        reset_rollups(session)
        roll_up_uncommitted(session)
        assert dump(session) == incremental
        session.rollback()


def filled(sessions, seed=1, count=100):
    with sessions.begin() as session:
        upsert_calls(session, calls(seed, count))
        upsert_interactions(session, runs(seed, 30))


def test_an_interrupted_rollup_continues_at_the_same_step(sessions, monkeypatch):
    filled(sessions)
    steps = []

    def stopping():
        steps.append(1)
        return len(steps) > 2

    assert not roll_up(sessions, stopping=stopping)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(UsageCalls)) > 0
        left = session.scalar(select(func.count()).select_from(UsageDirty))
        assert left > 0
        assert session.scalar(select(UsageState.rolled_up_s)) == 0

    def broken(*arguments):
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(rollups, "_rewrite", broken)
        with pytest.raises(RuntimeError, match="cut off"):
            roll_up(sessions)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(UsageDirty)) == left
    assert roll_up(sessions)
    with sessions() as session:
        whole = dump(session)
        assert session.scalar(select(UsageState.rolled_up_s)) > 0
    with sessions.begin() as session:
        reset_rollups(session)
    assert roll_up(sessions)
    with sessions() as session:
        assert dump(session) == whole
    assert compare(sessions, None, None).differences == []


def test_marks_made_during_a_step_are_kept(sessions, monkeypatch):
    one = calls(5, 1)[0]
    with sessions.begin() as session:
        upsert_calls(session, [one])
    read = rollups.raw_rows.calls
    quarter = (one.tenant, one.app, int(one.accepted_at) // QUARTER_S * QUARTER_S)

    def interrupted(session, window):
        rows = read(session, window)
        mark(session, {quarter})
        return rows

    monkeypatch.setattr(rollups, "RAW", [(rollups.CALLS, interrupted), *rollups.RAW[1:]])
    assert roll_up(sessions)
    with sessions() as session:
        assert session.scalars(select(UsageDirty.start_s)).all() == [quarter[2]]


def test_rollups_outlive_raw_rows_and_are_not_recomputed(sessions):
    filled(sessions)
    roll_up(sessions)
    with sessions() as session:
        before = dump(session)
    second_day = datetime.fromtimestamp(START, UTC).replace(hour=23)
    with sessions.begin() as session:
        horizon = raw_rows_from(session, second_day.replace(day=second_day.day + 1))
        assert (horizon.hour, horizon.minute, horizon.day) == (0, 0, second_day.day + 1)
    with sessions.begin() as session:
        assert delete_before(session, horizon) > 0
    with sessions.begin() as session:
        start = int(START) // QUARTER_S * QUARTER_S
        mark(session, {(f"tn_{n}", app, start) for n in range(2) for app in ("app_a", "app_B")})
    assert roll_up(sessions)
    with sessions() as session:
        assert dump(session) == before
        assert session.scalar(select(func.count()).select_from(UsageDirty)) == 0
    found = compare(sessions, None, None)
    assert found.differences == []
    assert found.compared > 0
    with sessions.begin() as session:
        assert raw_rows_from(session, second_day) == horizon, "it never goes back"


def test_raw_rows_are_kept_until_their_rollup(sessions):
    filled(sessions)
    far = datetime(2027, 1, 1, tzinfo=UTC)
    with sessions.begin() as session:
        oldest = session.scalar(select(func.min(UsageDirty.start_s)))
        assert raw_rows_from(session, far).timestamp() == oldest // DAY_S * DAY_S
    roll_up(sessions)
    with sessions.begin() as session:
        assert raw_rows_from(session, far) == far


def test_rollups_are_deleted_day_by_day(sessions):
    filled(sessions)
    roll_up(sessions)
    third = int(START) // DAY_S * DAY_S + 2 * DAY_S
    deleted = []
    while not deleted or deleted[-1]:
        with sessions.begin() as session:
            deleted.append(delete_rollups_before(session, datetime.fromtimestamp(third + 5, UTC)))
    assert len(deleted) == 3
    with sessions() as session:
        for rollup in TABLES:
            assert session.scalar(select(func.min(rollup.table.c.start_s))) >= third


def test_a_user_is_renamed_in_raw_rows_and_rollups(sessions):
    filled(sessions)
    roll_up(sessions)
    with sessions.begin() as session:
        for table in (LedgerCall, LedgerInteraction, ThrottlingEvent):
            for row in session.scalars(select(table).filter_by(tenant_id="tn_0", user_id="Zoe")):
                row.user_id = "erased-1"
    rename_user(sessions, "tn_0", "Zoe", "erased-1")
    assert compare(sessions, None, None).differences == []
    with sessions() as session:
        for rollup in TABLES:
            column = rollup.table.c
            left = select(column.tenant_id).where(column.user_id == "Zoe").distinct()
            assert session.scalars(left).all() == ["tn_1"]
            levels = select(column.level).where(column.user_id == "erased-1").distinct()
            assert set(session.scalars(levels)) == {"quarter_user", "day_user"}


DAMAGES = (
    "UPDATE usage_calls SET input_tokens = input_tokens + 1 WHERE level = 'day_tenant'",
    "UPDATE usage_calls SET service = service * 1.001 WHERE level = 'quarter_app'",
    "DELETE FROM usage_calls WHERE level = 'quarter_user' AND user_id = 'Zoe'",
    "UPDATE usage_runs SET complete = complete + 1 WHERE level = 'day_user'",
    "DELETE FROM usage_refusals WHERE level = 'day_app'",
    "UPDATE usage_calls SET ttft_digest = NULL WHERE level = 'day_app'",
    "UPDATE usage_calls SET user_id = 'x' WHERE level = 'day_user' AND user_id = 'anna'",
)


def test_reconciling_finds_and_repairs_differences(sessions):
    filled(sessions)
    roll_up(sessions)
    assert compare(sessions, None, None).differences == []
    with sessions() as session:
        whole = dump(session)
    for damage in DAMAGES:
        with sessions.begin() as session:
            session.execute(text(damage))
        found = compare(sessions, None, None)
        assert found.differences, damage
        table = damage.replace("DELETE FROM", "UPDATE").split()[1]
        assert {difference.table for difference in found.differences} == {table}
        assert str(found.differences[0]).startswith(table)
        assert repair(sessions, found.differences)
        assert compare(sessions, None, None).differences == [], damage
        with sessions() as session:
            assert dump(session) == whole, damage


def test_days_with_pending_rollups_are_not_compared(sessions):
    filled(sessions)
    found = compare(sessions, None, None)
    assert (found.compared, found.differences) == (0, [])
    assert found.marked > 0
    roll_up(sessions)
    with sessions.begin() as session:
        session.execute(delete(UsageDirty))
        late = calls(9, 1)
        upsert_calls(session, [replace(late[0], call_id="late")])
        session.execute(delete(UsageDirty))
    assert compare(sessions, None, None).differences, "a row without a mark is seen"


def test_the_time_of_the_rollups_recovers_from_a_clock_that_went_back(sessions):
    with sessions.begin() as session:
        session.scalars(select(UsageState)).one().rolled_up_s = utc_s() + 2 * DAY_S
    assert roll_up(sessions)
    with sessions() as session:
        assert session.scalar(select(UsageState.rolled_up_s)) <= utc_s()
