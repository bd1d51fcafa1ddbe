"""Calls and runs that share rows are counted in reports; lists of single calls and runs lack them."""

from dataclasses import replace
from datetime import UTC, datetime

import databases
import pytest
from call_records import call_record
from sqlalchemy import func, select

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.control.free_rows import FreeRows
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.control.messages import InteractionRecord, OpenInteractionRecord
from fairserve.platform.control.record import plain_of
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import (
    LedgerCall,
    LedgerInteraction,
    OpenInteraction,
    ThrottlingEvent,
)
from fairserve.platform.reporting.usage import interactions
from fairserve.platform.reporting.usage.reconcile import compare
from fairserve.platform.reporting.usage.reports import report
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.schemas import InteractionUsageQuery, UsageQuery
from fairserve.platform.server.ledger_rows import LedgerRows
from fairserve.platform.tuning import events
from fairserve.platform.tuning.schemas import EventQuery

pytestmark = databases.ON_BOTH

START = 1_772_323_200.0
CALLS, RUNS = 25, 12


@pytest.fixture
def ledger(tmp_path, sessions):
    journal = Journal(tmp_path / "journal")
    journal.open()
    rows = LedgerRows(sessions, KeyHasher(b"x" * 32), Outbox(BackgroundSettings(), "USD"))
    ledger = Ledger(journal, rows, retry_s=0.01)
    ledger.start()
    yield journal, ledger
    ledger.close(0)
    journal.close()


def close(journal, *records):
    for number, record in enumerate(records):
        journal.append("closed", f"{record.outcome} {number}", plain_of(record))


def call(number, outcome, **more):
    return call_record(
        f"{outcome}{number}",
        interaction_id=f"r{number}",
        outcome=outcome,
        accepted_at=START + number,
        served_model="m",
        **more,
    )


def time_of(at):
    return datetime.fromtimestamp(at, UTC)


def run(number):
    at = START + number
    return InteractionRecord(f"r{number}", "t", "a", "u", "aborted", at, at + 1, 1, 0, 0)


def test_reports_count_each_call_and_run_that_shares_a_row(sessions, ledger):
    journal, ledger = ledger
    rows = FreeRows()
    refused = {"refusal_reason": "overloaded_user_limit", "mid_run": True}
    for outcome, more in (("failed", {}), ("refused", refused)):
        calls = [call(number, outcome, **more) for number in range(CALLS)]
        close(journal, calls[0], *(rows.share_call(each, 0.0) for each in calls[1:]))
    for number in range(RUNS):
        opened = OpenInteractionRecord(f"r{number}", "t", "a", "u", START)
        journal.append("open_interaction", f"a/r{number}", plain_of(opened))
        record = rows.share_run(run(number), 0.0) if number else run(number)
        journal.append("interaction", f"a/r{number}", plain_of(record))
    assert ledger.flush(20)
    assert roll_up(sessions)
    with sessions() as session:
        usage = report(session, UsageQuery(group_by="app"), tenant_id=None, app_id=None)
        (row,) = usage.items
        assert (row.calls, row.failed, row.refused) == (2 * CALLS, CALLS, CALLS)
        assert row.refusals == {"overloaded_user_limit": CALLS}
        assert row.interactions.aborted == RUNS
        assert session.scalar(select(func.count()).select_from(LedgerCall)) == 4
        assert session.scalar(select(func.count()).select_from(ThrottlingEvent)) == 2
        assert session.scalar(select(func.sum(LedgerInteraction.calls))) == RUNS
        assert session.scalar(select(func.count()).select_from(OpenInteraction)) == 0
        page = events.page(session, EventQuery(), tenant_id=None, app_id=None)
        assert ([each.call_id for each in page.items], page.total) == (["refused0"], 1)
        groups = events.groups(session, EventQuery(), time_of(START - 1), time_of(START + CALLS))
        ((_, app, reason, rejected, _, users, *_, example),) = groups
        assert (app, reason, rejected, users) == ("a", "overloaded_user_limit", CALLS, 1)
        assert example == "refused0"
        runs = interactions.page(session, InteractionUsageQuery(), tenant_id=None, app_id=None)
        assert ([each.interaction for each in runs.items], runs.total) == (["r0"], 1)
    assert not compare(sessions, None, None).differences


def test_a_ledger_that_repeats_the_journal_counts_no_call_twice(sessions, ledger):
    journal, ledger = ledger
    rows = FreeRows()
    shared = [rows.share_call(call(number, "failed"), 0.0) for number in range(CALLS)]
    for part in (shared[:10], shared[5:20], shared):
        close(journal, *part)
        assert ledger.flush(20)
    with sessions() as session:
        assert list(session.scalars(select(LedgerCall.shared_by))) == [CALLS]


def test_rejections_are_grouped_by_app_and_reason(sessions):
    limit = {"refusal_scope": "user", "refusal_limit": 5, "refusal_window_s": 60.0}
    one, other = {"refusal_reason": "user_limit", **limit}, {"refusal_reason": "model_unavailable"}
    records = [call(number, "refused", **one) for number in range(4)]
    records += [call(number, "refused", app="b", **other) for number in (4, 5)]
    records += [call(6, "refused", tenant="another", **one), call(99, "refused", **one)]
    records += [call(7, "completed")]
    records[1] = replace(records[1], user="v")
    with sessions.begin() as session:
        upsert_calls(session, records)
    begin, end = time_of(START), time_of(START + 8)

    def grouped(**query):
        with sessions() as session:
            return events.groups(session, EventQuery(**query), begin, end)

    mine, its, theirs = grouped()
    assert (mine.tenant, mine.app, mine.reason) == ("t", "a", "user_limit")
    assert (mine.rejected, mine.recent, mine.users) == (4, 0, 2)
    assert (mine.limit, mine.window_s) == (5, 60.0)
    assert (mine.first_at, mine.last_at) == (begin, time_of(START + 3))
    assert mine.example == "refused3"
    assert (its.app, its.rejected, its.recent, its.limit) == ("b", 2, 2, None)
    assert theirs.tenant == "another"
    assert grouped(tenant="t") == [mine, its]
    assert grouped(app="b") == [its]
    assert grouped(app="nothing") == []
