"""No ledger row stops another: not at the database, not in the sums of rollups and reports."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import databases
import pytest
from call_records import call_record
from sqlalchemy import select, text
from until import until

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.control.ledger_tables import upsert_calls, upsert_interactions
from fairserve.platform.control.messages import InteractionRecord, OpenInteractionRecord
from fairserve.platform.control.record import plain_of
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, OpenInteraction
from fairserve.platform.db.usage import UsageCalls, UsageDirty
from fairserve.platform.reporting.usage import rollups
from fairserve.platform.reporting.usage.levels import level
from fairserve.platform.reporting.usage.reports import report
from fairserve.platform.reporting.usage.schemas import UsageQuery
from fairserve.platform.reporting.usage.spending import Spender, spent_before, spent_in_period
from fairserve.platform.server.ledger_rows import LedgerRows
from fairserve.scheduling.events import ContractChanged
from fairserve.throttling.quotas.quota import Quota

pytestmark = databases.ON_BOTH

DAY_S = 86_400
START = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
MOST = 2**63 - 1
CALL = call_record("good", tenant="tn_b", accepted_at=START, ended_at=START + 1)
RUN = InteractionRecord("good", "tn_b", "a", "u", "complete", START, START + 1, 1, 10, 0)
OPEN = OpenInteractionRecord("good open", "tn_b", "a", "u", START)
ABSURD = {
    "count": replace(CALL, call_id="bad", output_tokens=2**63),
    "cost": replace(CALL, call_id="bad", cost=2**64 - 1),
    "time": replace(CALL, call_id="bad", accepted_at=1e18),
    "no time": replace(CALL, call_id="bad", ended_at=None),
    "no service": replace(CALL, call_id="bad", service=float("nan")),
    "shape": replace(CALL, call_id="bad", model={"of": "no text"}),
    "rejection": replace(CALL, call_id="bad", outcome="refused", refusal_count=2**64 - 1),
    "run": replace(RUN, interaction_id="bad", tokens=2**64 - 1),
    "end of a run": replace(RUN, interaction_id="bad", ended_at=-1e300),
    "open run": replace(OPEN, interaction_id="bad", opened_at=1e300),
}
KINDS = {
    InteractionRecord: "interaction",
    OpenInteractionRecord: "open_interaction",
}


@pytest.fixture
def rows(sessions):
    """Return the ledger's writer, as the server has it."""
    return LedgerRows(sessions, KeyHasher(b"x" * 32), Outbox(BackgroundSettings(), "USD"))


@pytest.fixture
def start(tmp_path, rows):
    """Return a function that starts journal and ledger in the same folder."""
    opened = []

    def make():
        journal = Journal(tmp_path / "journal")
        journal.open()
        ledger = Ledger(journal, rows, retry_s=0.01)
        opened.append((journal, ledger))
        return journal, ledger

    yield make
    for journal, ledger in opened:
        ledger.close(0)
        journal.close()


def append(journal, *records):
    for record in records:
        key = getattr(record, "call_id", record.interaction_id)
        journal.append(KINDS.get(type(record), "closed"), key, plain_of(record))


@pytest.mark.parametrize("absurd", ABSURD.values(), ids=ABSURD)
def test_an_absurd_row_is_set_aside_and_the_others_are_written(sessions, start, absurd):
    journal, ledger = start()
    append(journal, CALL, RUN, OPEN, absurd, replace(CALL, call_id="after"))
    ledger.start()
    assert ledger.flush(20)
    assert ledger.rejected_rows == 1
    with sessions() as session:
        assert set(session.scalars(select(LedgerCall.call_id))) == {"good", "after"}
        assert list(session.scalars(select(LedgerInteraction.id))) == ["good"]
        assert list(session.scalars(select(OpenInteraction.id))) == ["good open"]


async def test_a_database_that_rejects_every_row_is_retried_and_nothing_is_set_aside(
    sessions, start
):
    """A table that an interrupted upgrade lacks is no fault of the rows."""
    with sessions.begin() as session:
        session.execute(text("ALTER TABLE ledger_calls RENAME TO ledger_calls_away"))
    journal, ledger = start()
    append(journal, CALL, ABSURD["count"])
    ledger.start()
    await until(lambda: ledger.waits_since_s is not None)
    with sessions.begin() as session:
        session.execute(text("ALTER TABLE ledger_calls_away RENAME TO ledger_calls"))
    assert await asyncio.to_thread(ledger.flush, 20)
    assert ledger.rejected_rows == 1
    with sessions() as session:
        assert list(session.scalars(select(LedgerCall.call_id))) == ["good"]


def test_rows_go_on_after_a_restart(sessions, start):
    journal, ledger = start()
    append(journal, ABSURD["cost"], CALL)
    journal.close()
    journal, ledger = start()
    append(journal, replace(CALL, call_id="after"))
    ledger.start()
    assert ledger.flush(20)
    with sessions() as session:
        assert set(session.scalars(select(LedgerCall.call_id))) == {"good", "after"}


def large(number, **more):
    """Return a call with the largest numbers that its columns hold."""
    most = dict.fromkeys(("input_tokens", "system_tokens", "output_tokens", "cost"), MOST)
    return replace(CALL, call_id=f"large{number}", tenant="tn_a", wasted=True, **(most | more))


def test_sums_of_large_rows_stop_no_rollup_and_no_report(sessions):
    with sessions.begin() as session:
        upsert_calls(session, [CALL, *(large(number) for number in range(3))])
        runs = [replace(RUN, interaction_id=f"r{n}", wasted_tokens=MOST) for n in range(2)]
        upsert_interactions(session, [replace(run, waste_cause="failed") for run in runs])
    assert rollups.roll_up(sessions)
    with sessions() as session:
        assert not session.scalars(select(UsageDirty.start_s)).all()
        sums = select(UsageCalls.cost, UsageCalls.wasted_tokens, UsageCalls.calls).where(
            UsageCalls.level == level("day", "tenant"), UsageCalls.tenant_id == "tn_a"
        )
        assert session.execute(sums).one() == (MOST, MOST, 3)
    with sessions() as session:
        found = report(session, UsageQuery(group_by=["tenant"]), tenant_id=None, app_id=None)
        assert {row.tenant: row.calls for row in found.items} == {"tn_a": 3, "tn_b": 1}
        assert found.sums.calls == 4
    with sessions() as session:
        assert spent_in_period(session, Spender("tn_a"), START, START + DAY_S) == MOST
    contract = ContractChanged("tenant", "tn_a", quota=Quota(max_budget=1, budget_duration="1mo"))
    for until_s in (START + 10, START + 20 * DAY_S):
        with sessions() as session:
            spent_before(session, contract, until_s)


def test_a_day_that_cannot_be_rolled_up_stops_no_other(sessions, monkeypatch, caplog):
    with sessions.begin() as session:
        upsert_calls(session, [CALL, replace(CALL, call_id="c2", tenant="tn_a")])
    (table, read), *others = rollups.RAW

    def failing(session, window):
        if window.tenant_id == "tn_a":
            raise ValueError("a row of another version")
        return read(session, window)

    monkeypatch.setattr(rollups, "RAW", ((table, failing), *others))
    assert rollups.roll_up(sessions)
    with sessions() as session:
        assert list(session.scalars(select(UsageDirty.tenant_id))) == ["tn_a"]
        assert set(session.scalars(select(UsageCalls.tenant_id))) == {"tn_b"}
    assert "of tenant tn_a cannot be rolled up" in caplog.text
