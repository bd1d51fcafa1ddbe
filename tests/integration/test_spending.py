"""Spending of a budget before control counts it includes each call once, from rollups and raw rows."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from call_records import call_record
from databases import ON_POSTGRESQL

from fairserve.platform.control.budgets import BudgetOpenings
from fairserve.platform.control.ledger_tables import upsert_calls
from fairserve.platform.db.engine import connect, session_factory
from fairserve.platform.reporting.usage.retention import delete_before, raw_rows_from
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.spending import spent_before, spent_on_day
from fairserve.scheduling.events import BudgetSpent, ContractChanged
from fairserve.throttling.quotas.quota import Quota

pytestmark = ON_POSTGRESQL

NOW = datetime(2026, 11, 22, 15, 7, tzinfo=UTC)
MONTH = Quota(max_budget=10**15, budget_duration="1mo")


@pytest.fixture(scope="module")
def records():
    """Return calls of two tenants on some of forty days, the last still running at ``NOW``."""
    chance = random.Random(5)
    made = []
    for number in range(600):
        days = chance.choice((0, 0, 0, 0, 1, 2, 3, 5, 6, 7, 14, 22, 39)) + chance.random() ** 2
        accepted_at = NOW.timestamp() - days * 86_400
        app = chance.choice(["a1", "a2", "b1"])
        made.append(
            call_record(
                f"c{number}",
                tenant="t" + app[0],
                app=app,
                user=chance.choice(["ann", "bob", "it's, ä"]),
                accepted_at=accepted_at,
                ended_at=accepted_at + chance.choice([0.5, 60, 3600]),
                cost=chance.randrange(1, 10**9) if number % 9 else 0,
            )
        )
    return made


def fill(sessions, records):
    with sessions.begin() as session:
        upsert_calls(session, records)
    roll_up(sessions)


@pytest.fixture(scope="module")
def ledger(new_postgres_url, records):
    """Return sessions of a database with all calls, which no test changes."""
    engine = connect(new_postgres_url())
    sessions = session_factory(engine)
    fill(sessions, records)
    yield sessions
    engine.dispose()


def plain_sums(records, contract, begin, until):
    """Return the sums by owner, computed in plain Python."""
    found = {}
    for record in records:
        fits = (
            record.tenant == contract.tenant
            and contract.app in ("", record.app)
            and contract.user in ("", record.user)
        )
        if fits and begin <= record.accepted_at and record.ended_at <= until and record.cost:
            user = record.user if contract.scope == "app_user" else contract.user
            owner = (contract.tenant, contract.app, user)
            found[owner] = found.get(owner, 0) + record.cost
    return found


HOLDERS = [
    {"scope": "tenant", "tenant": "ta"},
    {"scope": "app", "tenant": "ta", "app": "a1"},
    {"scope": "app_user", "tenant": "ta", "app": "a2"},
    {"scope": "user", "tenant": "ta", "user": "it's, ä"},
    {"scope": "app", "tenant": "ta", "app": "b1"},
]


def test_spending_is_the_sum_over_ended_calls(ledger, records):
    until = NOW.timestamp()
    for holder, duration in product(HOLDERS, ["1h", "1d", "3d", "7d", "1mo", "12mo"]):
        quota = Quota(max_budget=10**15, budget_duration=duration)
        contract = ContractChanged(**holder, quota=quota)
        begin, _ = quota.period.bounds(until)
        with ledger() as session:
            entries = spent_before(session, contract, until)
        found = {entry.owner: entry.amount for entry in entries}
        assert found == plain_sums(records, contract, begin, until), (holder, duration)
        assert {(entry.at, entry.scope) for entry in entries} <= {(begin, holder["scope"])}
    # Days whose raw rows were deleted still count as spent.
    contract = ContractChanged("tenant", "ta", quota=MONTH)
    begin, _ = MONTH.period.bounds(NOW.timestamp())
    with ledger() as session:
        before = raw_rows_from(session, NOW - timedelta(days=5))
        assert delete_before(session, before) > 0
        (entries,) = spent_before(session, contract, NOW.timestamp())
        session.rollback()
    assert entries.amount == plain_sums(records, contract, begin, NOW.timestamp())[entries.owner]


def test_an_owner_without_budget_or_calls_reports_no_spending(sessions, records):
    fill(sessions, [replace(records[0], cost=0)])
    for contract in (
        ContractChanged("tenant", "ta", quota=Quota(rpm_limit=5)),
        ContractChanged("tenant", "ta", quota=MONTH),
        ContractChanged("app_user", "ta", "a1", quota=MONTH),
    ):
        with sessions() as session:
            assert spent_before(session, contract, NOW.timestamp()) == []


def test_spending_that_is_not_available_is_reported_later_and_once():
    contract = ContractChanged("tenant", "ta", quota=MONTH)
    entry = BudgetSpent(("ta", "", ""), 7, NOW.timestamp(), "tenant")
    away, entries = [True], []

    def spent(asked, until):
        assert (asked, until) == (contract, 5.0)
        if away:
            raise TimeoutError("the ledger is behind")
        return [entry]

    openings = BudgetOpenings(spent, entries.append)
    openings.open([(contract, 5.0), (ContractChanged("app", "ta", "a1"), 5.0)])
    openings.retry()
    assert entries == []
    away.clear()
    openings.retry()
    openings.retry()
    assert entries == [entry]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("has_period", [True, False])
def test_spending_counts_once_if_the_period_changes_while_it_is_read(behind, has_period):
    month = ContractChanged("tenant", "ta", quota=MONTH)
    day = replace(month, quota=replace(MONTH, budget_duration="1d"))
    once = BudgetSpent(("ta", "", ""), 7, NOW.timestamp(), "tenant")
    entries, changes = [], [day]

    def spent(asked, until):
        if changes:
            changes.clear()
            openings.supersede(day)
            if has_period:
                openings.open([(day, 6.0)])
            if behind:
                raise TimeoutError("the ledger is behind")
        return [replace(once, amount=7 if asked == day else 9)]

    openings = BudgetOpenings(spent, entries.append)
    openings.open([(month, 5.0)])
    openings.retry()
    assert entries == [once] * has_period


@pytest.mark.parametrize("days_ago", [0, 3])
def test_spending_of_a_day_is_that_of_the_calls_of_each_group(ledger, records, days_ago):
    at = NOW - timedelta(days=days_ago)
    of_day = [
        each
        for each in records
        if datetime.fromtimestamp(each.accepted_at, UTC).date() == at.date()
    ]
    sums = {}
    for each in of_day:
        for group in (each.tenant, each.app):
            sums[group] = sums.get(group, 0) + each.cost
    with ledger() as session:
        tenants = spent_on_day(session, None, ["ta", "tb", "absent"], at)
        apps = spent_on_day(session, "ta", ["a1", "a2", "b1"], at)
    assert tenants == {name: sums[name] for name in ("ta", "tb")}
    assert apps == {name: sums[name] for name in ("a1", "a2")}, "none of another tenant"
