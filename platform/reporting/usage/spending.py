"""Spending of a budget's subject in a period, from the rollups and recent raw rows.

:func:`spent_before` is for a new budget and the server's start: it has the spending of each user.
:func:`spent_in_period` is one sum, cheap enough for every check; :func:`spent_on_day` is for pages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, and_, literal, or_, select
from sqlalchemy.orm import Session

from fairserve.platform.db.engine import read_only
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.sums import sum_of
from fairserve.platform.db.usage import QUARTER_S, UsageCalls, UsageDirty, UsageState
from fairserve.platform.reporting.usage.levels import DAY_S, Detail, Span, level
from fairserve.scheduling.events import BudgetSpent, ContractChanged

MAX_MARKS = 200
"""Number of marks above which the rollups are too far behind, and raw rows take too long to sum."""


class Spender(NamedTuple):
    """A tenant, one of its apps, one of its users, or one user of one app."""

    tenant: str
    app: str = ""
    user: str = ""
    each_user: bool = False
    """True for each user of the app."""


def spent_before(session: Session, contract: ContractChanged, until: float) -> list[BudgetSpent]:
    """Return the spending of calls that were accepted in the current period and ended before ``until``.

    UTC days come from the rollups, which are kept longer than raw rows; the last one or two days come
    from raw rows, which have the ends of calls. The rollups must include calls accepted two days ago.
    """
    period = contract.quota.period
    if period is None:
        return []
    read_only(session)
    scope, tenant, app = contract.scope, contract.tenant, contract.app
    spender = Spender(tenant, app, contract.user, scope == "app_user")
    begin, _ = period.bounds(until)
    raw_from = max(begin, (until - DAY_S) // DAY_S * DAY_S)
    ended = LedgerCall.ended_at <= datetime.fromtimestamp(until, UTC)
    spent = _by_user(session, spender, LedgerCall, _accepted(raw_from, None), ended)
    if begin < raw_from:
        days = _rolled_up(spender, "day", int(begin), int(raw_from))
        for user, cost in _by_user(session, spender, UsageCalls, days).items():
            spent[user] = spent.get(user, 0) + cost
    return [BudgetSpent((tenant, app, user), cost, begin, scope) for user, cost in spent.items()]


def spent_in_period(session: Session, spender: Spender, begin: float, end: float) -> int | None:
    """Return the spent nanounits of calls accepted from ``begin`` to before ``end``.

    Both are UTC epoch seconds on quarter hours. Returns None while the rollups are too far behind. Rows
    that the caller has flushed count at once, because their marks are written with them.

    For a tenant or an app it sums days and quarter hours of the rollups, and raw rows only for marked
    quarter hours, usually the last one. For a user it sums the user's raw rows through their index,
    because rollups of users are indexed by tenant only; days without raw rows come from the rollups.
    """
    raw_from_s = int(session.scalar(select(UsageState.raw_from_s)) or 0)
    begin_s, end_s = int(begin), int(end)
    if not spender.user:
        return _of_tenant_or_app(session, spender, begin_s, end_s, raw_from_s)
    spent = _raw(session, spender, [(max(begin_s, raw_from_s), end_s)])
    if begin_s < raw_from_s:
        days = _rolled_up(spender, "day", begin_s, min(raw_from_s, end_s))
        spent += _sum(session, spender, UsageCalls, days)
    return spent


def spent_on_day(
    session: Session, tenant: str | None, groups: Collection[str], at: datetime
) -> dict[str, int]:
    """Return the spent nanounits of these tenants, or apps of a tenant, in the UTC day of a time so far.

    Those without calls are missing. One query by the rollups' key, which are seconds behind.
    """
    group = UsageCalls.tenant_id if tenant is None else UsageCalls.app_id
    owners: list[ColumnElement[bool]] = [group.in_(groups)]
    if tenant is not None:
        owners.append(UsageCalls.tenant_id == tenant)
    detail: Detail = "tenant" if tenant is None else "app"
    day_s = int(at.timestamp()) // DAY_S * DAY_S
    of_day = (UsageCalls.level == level("day", detail), UsageCalls.start_s == day_s)
    sums = select(group, sum_of(UsageCalls.cost)).where(*of_day, *owners).group_by(group)
    return {name: int(total) for name, total in session.execute(sums)}


def _of_tenant_or_app(
    session: Session, spender: Spender, begin_s: int, end_s: int, raw_from_s: int
) -> int | None:
    marked = select(UsageDirty.start_s).where(
        UsageDirty.tenant_id == spender.tenant,
        UsageDirty.start_s >= max(begin_s, raw_from_s),
        UsageDirty.start_s < end_s,
    )
    if spender.app:
        marked = marked.where(UsageDirty.app_id == spender.app)
    dirty = sorted(session.scalars(marked.distinct().limit(MAX_MARKS + 1)))
    if len(dirty) > MAX_MARKS:
        return None
    clean = UsageCalls.start_s.not_in(dirty)
    if begin_s % DAY_S or end_s % DAY_S:
        quarters = _rolled_up(spender, "quarter", begin_s, end_s)
        spent = _sum(session, spender, UsageCalls, quarters, clean)
    else:
        days = sorted({start_s // DAY_S * DAY_S for start_s in dirty})
        whole = UsageCalls.start_s.not_in(days)
        spent = _sum(
            session, spender, UsageCalls, _rolled_up(spender, "day", begin_s, end_s), whole
        )
        if days:
            of_days = [_rolled_up(spender, "quarter", day_s, day_s + DAY_S) for day_s in days]
            spent += _sum(session, spender, UsageCalls, or_(*of_days), clean)
    return spent + _raw(session, spender, [(start_s, start_s + QUARTER_S) for start_s in dirty])


def _raw(session: Session, spender: Spender, spans: Iterable[tuple[int, int]]) -> int:
    return sum(_sum(session, spender, LedgerCall, _accepted(*span)) for span in _joined(spans))


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted spans with adjacent ones merged."""
    found: list[tuple[int, int]] = []
    for begin_s, end_s in spans:
        if found and found[-1][1] == begin_s:
            found[-1] = (found[-1][0], end_s)
        elif begin_s < end_s:
            found.append((begin_s, end_s))
    return found


def _accepted(begin: float, end: float | None) -> ColumnElement[bool]:
    since = LedgerCall.accepted_at >= datetime.fromtimestamp(begin, UTC)
    if end is None:
        return since
    return and_(since, LedgerCall.accepted_at < datetime.fromtimestamp(end, UTC))


def _rolled_up(spender: Spender, span: Span, begin_s: int, end_s: int) -> ColumnElement[bool]:
    detail: Detail = "app" if spender.app else "tenant"
    if spender.user or spender.each_user:
        detail = "user"
    return and_(
        UsageCalls.level == level(span, detail),
        UsageCalls.start_s >= begin_s,
        UsageCalls.start_s < end_s,
    )


def _sum(
    session: Session,
    spender: Spender,
    table: type[LedgerCall | UsageCalls],
    *where: ColumnElement[bool],
) -> int:
    return sum(_by_user(session, spender, table, *where).values())


def _by_user(
    session: Session,
    spender: Spender,
    table: type[LedgerCall | UsageCalls],
    *where: ColumnElement[bool],
) -> dict[str, int]:
    """Return the sums by user for each user of an app; else one sum, under the spender's user or
    ``""``, or none.
    """
    owner = [table.tenant_id == spender.tenant]
    if spender.app:
        owner.append(table.app_id == spender.app)
    if spender.user:
        owner.append(table.user_id == spender.user)
    user: ColumnElement[Any] = literal(spender.user, String)
    if spender.each_user:
        user = table.user_id.expression
    sums = select(user.label("user"), sum_of(table.cost)).where(*owner, *where, table.cost > 0)
    return {name: int(total) for name, total in session.execute(sums.group_by("user"))}
