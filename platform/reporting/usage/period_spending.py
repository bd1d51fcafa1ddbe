"""Spending of one budget subject in the current period, cheap enough for every check.

For a tenant or an app it sums days and quarter hours of the rollups, and raw rows only for marked
quarter hours, usually the last one. For a user it sums the user's raw rows through their index, because
rollups of users are indexed by tenant only; days without raw rows come from the rollups. Rows that the
caller has flushed count at once, because their marks are written with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.sums import sum_of
from fairserve.platform.db.usage import QUARTER_S, UsageCalls, UsageDirty, UsageState
from fairserve.platform.reporting.usage.levels import DAY_S, level

MAX_MARKS = 200
"""Number of marks above which the rollups are too far behind, and raw rows take too long to sum."""


class Spender(NamedTuple):
    """A tenant, one of its apps, one of its users, or one user of one app."""

    tenant: str
    app: str = ""
    user: str = ""


def spent_in_period(session: Session, spender: Spender, begin: float, end: float) -> int | None:
    """Return the spent nanounits of calls accepted from ``begin`` to before ``end``.

    Both are UTC epoch seconds on quarter hours. Returns None while the rollups are too far behind.
    """
    raw_from_s = int(session.scalar(select(UsageState.raw_from_s)) or 0)
    begin_s, end_s = int(begin), int(end)
    if not spender.user:
        return _rolled_up(session, spender, begin_s, end_s, raw_from_s)
    spent = _raw(session, spender, [(max(begin_s, raw_from_s), end_s)])
    if begin_s < raw_from_s:
        days = (UsageCalls.start_s >= begin_s, UsageCalls.start_s < min(raw_from_s, end_s))
        spent += _sum(session, UsageCalls.cost, _at(spender, "day"), *days)
    return spent


def _rolled_up(
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
    in_period = and_(UsageCalls.start_s >= begin_s, UsageCalls.start_s < end_s)
    clean = UsageCalls.start_s.not_in(dirty)
    if begin_s % DAY_S or end_s % DAY_S:
        spent = _sum(session, UsageCalls.cost, _at(spender, "quarter"), in_period, clean)
    else:
        days = {start_s // DAY_S * DAY_S for start_s in dirty}
        whole = UsageCalls.start_s.not_in(days)
        spent = _sum(session, UsageCalls.cost, _at(spender, "day"), in_period, whole)
        if days:
            of_days = or_(
                *(
                    and_(UsageCalls.start_s >= day_s, UsageCalls.start_s < day_s + DAY_S)
                    for day_s in sorted(days)
                )
            )
            spent += _sum(session, UsageCalls.cost, _at(spender, "quarter"), of_days, clean)
    return spent + _raw(session, spender, [(start_s, start_s + QUARTER_S) for start_s in dirty])


def _raw(session: Session, spender: Spender, spans: Iterable[tuple[int, int]]) -> int:
    spent = 0
    for begin_s, end_s in _joined(spans):
        times = (
            LedgerCall.accepted_at >= datetime.fromtimestamp(begin_s, UTC),
            LedgerCall.accepted_at < datetime.fromtimestamp(end_s, UTC),
        )
        spent += _sum(session, LedgerCall.cost, _of(LedgerCall, spender), *times)
    return spent


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted spans with adjacent ones merged."""
    found: list[tuple[int, int]] = []
    for begin_s, end_s in spans:
        if found and found[-1][1] == begin_s:
            found[-1] = (found[-1][0], end_s)
        elif begin_s < end_s:
            found.append((begin_s, end_s))
    return found


def _at(spender: Spender, span: str) -> ColumnElement[bool]:
    detail = "user" if spender.user else "app" if spender.app else "tenant"
    return and_(UsageCalls.level == level(span, detail), _of(UsageCalls, spender))  # type: ignore[arg-type]  # the two spans


def _of(table: type[LedgerCall | UsageCalls], spender: Spender) -> ColumnElement[bool]:
    conditions = [table.tenant_id == spender.tenant]
    if spender.app:
        conditions.append(table.app_id == spender.app)
    if spender.user:
        conditions.append(table.user_id == spender.user)
    return and_(*conditions)


def _sum(session: Session, cost: InstrumentedAttribute[int], *where: ColumnElement[bool]) -> int:
    return int(session.scalar(select(sum_of(cost)).where(*where, cost > 0)) or 0)
