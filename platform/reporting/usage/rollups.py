"""Background job of the rollups: recomputes marked quarter hours from the ledger.

A step reads the marks of a few quarter hours of one tenant's day, computes their rows of the finest
level from raw rows, folds them into the coarser levels, and deletes the marks, in one short transaction.
An interrupted step has no effect; a step is idempotent. Quarter hours whose raw rows may have been
deleted are never recomputed. A day whose rows cannot be summed keeps its marks, is logged, and stops no
other day.

A lock on the row of ``usage_state`` excludes steps of other processes. The ledger does not take that
lock: marks that it writes during a step survive the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, bindparam, delete, insert, select, tuple_
from sqlalchemy.orm import Session

from fairserve.platform.base.clock import utc_s
from fairserve.platform.db.causes import may_be_values
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.usage import QUARTER_S, UsageDirty, UsageState
from fairserve.platform.reporting.usage import raw_rows
from fairserve.platform.reporting.usage.levels import (
    CALLS,
    DAY_S,
    REFUSALS,
    RUNS,
    Detail,
    RollupTable,
    Row,
    Span,
    fold,
    level,
)
from fairserve.platform.reporting.usage.raw_rows import Window

logger = logging.getLogger(__name__)

MAX_MARKS = 400
"""Maximum number of marks handled by one step."""
MAX_GAP_S = 16 * QUARTER_S
"""Maximum gap between marks that are rolled up with the quarter hours between them."""
_KEYS = 200
"""Maximum number of keys in one condition: SQLite bounds the depth of an expression."""

RAW: Sequence[tuple[RollupTable, Callable[[Session, Window], list[Row]]]] = (
    (CALLS, raw_rows.calls),
    (RUNS, raw_rows.runs),
    (REFUSALS, raw_rows.refusals),
)
_MARK = ("tenant_id", "app_id", "start_s", "marks")
_UNMARK = delete(UsageDirty).where(
    *(getattr(UsageDirty, name) == bindparam(name) for name in _MARK)
)


class RollupMark(NamedTuple):
    """A quarter hour that needs a rollup, with its number of marks when it was read."""

    tenant_id: str
    app_id: str
    start_s: int
    marks: int


def roll_up(sessions: SessionFactory, *, stopping: Callable[[], bool] = lambda: False) -> bool:
    """Roll up all current marks, with one transaction per step.

    Returns False if ``stopping`` returned True or another process is rolling up.
    """
    began_s = utc_s()
    with sessions() as session:
        days = marked_days(session)
    for tenant_id, day_s in days:
        try:
            if not _roll_up_day(sessions, tenant_id, day_s, stopping):
                return False
        except Exception as error:
            if not may_be_values(error):
                raise
            logger.exception("day %d of tenant %s cannot be rolled up", day_s // DAY_S, tenant_id)
    with sessions.begin() as session:
        state = lock_state(session)
        if state is None:
            return False
        if not began_s <= state.rolled_up_s <= utc_s():  # later: before the clock went back
            state.rolled_up_s = began_s
    return True


def _roll_up_day(
    sessions: SessionFactory, tenant_id: str, day_s: int, stopping: Callable[[], bool]
) -> bool:
    """Roll up the marks of a tenant's day, with one transaction per step; return as :func:`roll_up`."""
    after: tuple[int, str] | None = (day_s, "")
    while after is not None:
        if stopping():
            return False
        with sessions.begin() as session:
            state = lock_state(session)
            if state is None:
                return False
            after = roll_up_some(session, state, tenant_id, after)
    return True


def lock_state(session: Session) -> UsageState | None:
    """Return the state row, locked until the transaction ends; None if another process locks it."""
    return session.scalars(
        select(UsageState)
        .with_for_update(skip_locked=True)
        .execution_options(populate_existing=True)
    ).one_or_none()


def marked_days(session: Session) -> list[tuple[str, int]]:
    """Return the tenants and days with marks, oldest day first."""
    day = (UsageDirty.start_s // DAY_S * DAY_S).label("day")
    found = session.execute(
        select(UsageDirty.tenant_id, day)
        .group_by(UsageDirty.tenant_id, day)
        .order_by(day, UsageDirty.tenant_id)
    )
    return [(tenant_id, int(day_s)) for tenant_id, day_s in found]


def roll_up_some(
    session: Session, state: UsageState, tenant_id: str, after: tuple[int, str]
) -> tuple[int, str] | None:
    """Run one step on a tenant's day beyond (start, app). Return the last key; None at its end."""
    day_end_s = after[0] // DAY_S * DAY_S + DAY_S
    found = session.execute(
        select(UsageDirty.tenant_id, UsageDirty.app_id, UsageDirty.start_s, UsageDirty.marks)
        .where(
            UsageDirty.tenant_id == tenant_id,
            tuple_(UsageDirty.start_s, UsageDirty.app_id) > after,
            UsageDirty.start_s < day_end_s,
        )
        .order_by(UsageDirty.start_s, UsageDirty.app_id)
        .limit(MAX_MARKS)
    )
    marks = _near_each_other([RollupMark(*row) for row in found])
    if not marks:
        return None
    if marks[0].start_s >= state.raw_from_s:
        apps = sorted({mark.app_id for mark in marks})
        window = Window(tenant_id, apps, marks[0].start_s, marks[-1].start_s + QUARTER_S)
        for table, read in RAW:
            _rewrite(session, table, window, read(session, window))
    session.connection().execute(_UNMARK, [mark._asdict() for mark in marks])
    return marks[-1].start_s, marks[-1].app_id


def _near_each_other(marks: list[RollupMark]) -> list[RollupMark]:
    """Return the marks up to the first gap that is too long."""
    for number, (one, next_one) in enumerate(pairwise(marks), start=1):
        if next_one.start_s - one.start_s > MAX_GAP_S:
            return marks[:number]
    return marks


def _rewrite(session: Session, table: RollupTable, window: Window, rows: list[Row]) -> None:
    """Replace the window's rows of the finest level, and all coarser rows above them."""
    column = table.table.c
    day_s = window.begin_s // DAY_S * DAY_S
    of_tenant = column.tenant_id == window.tenant_id
    in_day = and_(of_tenant, column.start_s >= day_s, column.start_s < day_s + DAY_S)
    of_apps = column.app_id.in_(window.app_ids)
    in_quarters = and_(of_tenant, column.start_s >= window.begin_s, column.start_s < window.end_s)
    changed = and_(in_quarters, of_apps)
    keys = [column[name] for name in table.keys]
    finest = column.level == "quarter_user"

    before: set[tuple[str, ...]] = {
        tuple(row) for row in session.execute(select(*keys).where(finest, changed))
    }
    session.execute(delete(table.table).where(finest, changed))
    _insert(session, table, rows)
    _replace(session, table, rows, ("quarter", "app"), changed)
    per_app = _read(session, table, ("quarter", "app"), in_quarters)
    _replace(session, table, per_app, ("quarter", "tenant"), in_quarters)

    touched = tuple_(*keys).in_(select(*keys).where(finest, changed))
    gone = sorted(before - {tuple(row[name] for name in table.keys) for row in rows})
    parts = [gone[begin : begin + _KEYS] for begin in range(0, len(gone), _KEYS)]
    for users in (touched, *(tuple_(*keys).in_(part) for part in parts)):
        per_quarter = _read(session, table, ("quarter", "user"), in_day, users)
        _replace(session, table, per_quarter, ("day", "user"), in_day, users)

    per_app = _read(session, table, ("quarter", "app"), in_day, of_apps)
    _replace(session, table, per_app, ("day", "app"), in_day, of_apps)
    per_app = _read(session, table, ("day", "app"), in_day)
    _replace(session, table, per_app, ("day", "tenant"), in_day)


def _replace(
    session: Session,
    table: RollupTable,
    finer: list[Row],
    to: tuple[Span, Detail],
    *where: ColumnElement[bool],
) -> None:
    """Replace rows of a level by the fold of rows of a finer one."""
    session.execute(delete(table.table).where(table.table.c.level == level(*to), *where))
    _insert(session, table, fold(table, finer, *to))


def _read(
    session: Session, table: RollupTable, of: tuple[Span, Detail], *where: ColumnElement[bool]
) -> list[Row]:
    column = table.table.c
    order = [column.start_s, *(column[name] for name in table.keys)]
    of_level = column.level == level(*of)
    found = session.execute(select(table.table).where(of_level, *where).order_by(*order))
    return [dict(row) for row in found.mappings()]


def _insert(session: Session, table: RollupTable, rows: list[Row]) -> None:
    if rows:
        session.execute(insert(table.table), rows)
