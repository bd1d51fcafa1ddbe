"""Spending of a budget's subject in a period, from the rollups and recent raw rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, String, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.db.engine import read_only
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.sums import sum_of
from fairserve.platform.db.usage import UsageCalls
from fairserve.platform.reporting.usage.levels import DAY_S, Detail, level
from fairserve.scheduling.events import BudgetSpent, ContractChanged

_DETAILS: dict[str, Detail] = {
    "tenant": "tenant",
    "app": "app",
    "app_user": "user",
    "user": "user",
}


def spent_before(session: Session, contract: ContractChanged, until: float) -> list[BudgetSpent]:
    """Return the spending of calls that were accepted in the current period and ended before ``until``.

    UTC days come from the rollups, which are kept longer than raw rows; the last one or two days come
    from raw rows, which have the ends of calls. The rollups must include calls accepted two days ago.
    """
    period = contract.quota.period
    if period is None:
        return []
    read_only(session)
    begin, _ = period.bounds(until)
    raw_from = max(begin, (until - DAY_S) // DAY_S * DAY_S)
    spent = _raw(session, contract, raw_from, until)
    if begin < raw_from:
        for user, cost in _rolled_up(session, contract, int(begin), int(raw_from)).items():
            spent[user] = spent.get(user, 0) + cost
    scope, tenant, app = contract.scope, contract.tenant, contract.app
    return [BudgetSpent((tenant, app, user), cost, begin, scope) for user, cost in spent.items()]


def _raw(session: Session, contract: ContractChanged, begin: float, until: float) -> dict[str, int]:
    times = (
        LedgerCall.accepted_at >= datetime.fromtimestamp(begin, UTC),
        LedgerCall.ended_at <= datetime.fromtimestamp(until, UTC),
        LedgerCall.cost > 0,
    )
    return _by_user(session, contract, LedgerCall, LedgerCall.cost, times)


def _rolled_up(
    session: Session, contract: ContractChanged, begin_s: int, end_s: int
) -> dict[str, int]:
    days = (
        UsageCalls.level == level("day", _DETAILS[contract.scope]),
        UsageCalls.start_s >= begin_s,
        UsageCalls.start_s < end_s,
        UsageCalls.cost > 0,
    )
    return _by_user(session, contract, UsageCalls, UsageCalls.cost, days)


def _by_user(
    session: Session,
    contract: ContractChanged,
    table: type[LedgerCall | UsageCalls],
    cost: InstrumentedAttribute[int],
    conditions: tuple[ColumnElement[bool], ...],
) -> dict[str, int]:
    """Return the sums by user of an app's users; else one sum, under the subject's user or ``""``."""
    owner = [table.tenant_id == contract.tenant]
    if contract.app:
        owner.append(table.app_id == contract.app)
    if contract.user:
        owner.append(table.user_id == contract.user)
    each = contract.scope == "app_user"
    user: ColumnElement[Any] = table.user_id.expression if each else literal(contract.user, String)
    found = session.execute(
        select(user.label("user"), sum_of(cost)).where(*owner, *conditions).group_by("user")
    )
    return {name: int(total) for name, total in found}
