"""Compare the rollups with the ledger's raw rows.

For each UTC day, each sum of each level is compared with that of the raw rows, per tenant, app, user and
model as far as the level distinguishes them; for digests, the number of values is compared. Only days
with all raw rows and without marks can be compared. Raw rows are read once, one tenant's day at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.db.usage import QUARTER_S, UsageDirty, UsageState
from fairserve.platform.db.usage_marks import mark
from fairserve.platform.reporting.usage.digests import weight
from fairserve.platform.reporting.usage.levels import (
    DAY_S,
    DETAILS,
    LEVELS,
    SPANS,
    RollupTable,
    Row,
    fold,
)
from fairserve.platform.reporting.usage.raw_rows import Window
from fairserve.platform.reporting.usage.rollups import RAW, roll_up

_SOURCES: Sequence[tuple[Any, Any]] = (
    (LedgerCall, LedgerCall.accepted_at),
    (LedgerInteraction, LedgerInteraction.ended_at),
    (ThrottlingEvent, ThrottlingEvent.at),
)


class Difference(NamedTuple):
    """A rolled-up sum that differs from the raw rows."""

    table: str
    level: str
    tenant_id: str
    start_s: int
    key: tuple[str, ...]
    column: str
    rolled_up: float
    raw: float

    def __str__(self) -> str:
        """Return a one-line description."""
        begin = datetime.fromtimestamp(self.start_s, UTC).isoformat(timespec="minutes")
        key = ", ".join(part for part in (self.tenant_id, *self.key) if part)
        return (
            f"{self.table} {self.level} {begin} {key}: {self.column} is {self.rolled_up:g},"
            f" the raw rows sum to {self.raw:g}"
        )


class Comparison(NamedTuple):
    """Result of a comparison."""

    compared: int
    """Number of compared days, per tenant."""
    marked: int
    """Number of days skipped because they need a rollup, per tenant."""
    differences: list[Difference]


def compare(
    sessions: SessionFactory, begin_s: int | None, end_s: int | None, *, most: int = 1000
) -> Comparison:
    """Compare the days completely within the bounds; stop after ``most`` differences."""
    compared = marked = 0
    differences: list[Difference] = []
    with sessions() as session:
        days = _days(read_only(session), begin_s, end_s)
    for day_s in days:
        with sessions() as session:
            read_only(session)
            for tenant_id, app_ids in sorted(_apps(session, day_s).items()):
                if len(differences) >= most:
                    break
                if _is_marked(session, tenant_id, day_s):
                    marked += 1
                    continue
                compared += 1
                window = Window(tenant_id, sorted(app_ids), day_s, day_s + DAY_S)
                for table, read in RAW:
                    differences += _differences(session, table, window, read(session, window))
    return Comparison(compared, marked, differences[:most])


def repair(sessions: SessionFactory, differences: Iterable[Difference]) -> bool:
    """Recompute the rollups of the days with differences; return whether all were done."""
    days = {(found.tenant_id, found.start_s // DAY_S * DAY_S) for found in differences}
    for tenant_id, day_s in sorted(days):
        with sessions.begin() as session:
            app_ids = _apps(session, day_s).get(tenant_id, set())
            for table in (rollup.table for rollup, _ in RAW):
                column = table.c
                session.execute(
                    delete(table).where(
                        column.level.in_(LEVELS),
                        column.tenant_id == tenant_id,
                        column.start_s >= day_s,
                        column.start_s < day_s + DAY_S,
                    )
                )
            starts = range(day_s, day_s + DAY_S, QUARTER_S)
            mark(
                session, {(tenant_id, app_id, start_s) for app_id in app_ids for start_s in starts}
            )
    return roll_up(sessions)


def _days(session: Session, begin_s: int | None, end_s: int | None) -> range:
    """Return the UTC days with complete raw rows, from the first row of any kind to the last."""
    kept_from_s = session.scalar(select(UsageState.raw_from_s)) or 0
    times: list[float] = []
    for _, time in _SOURCES:
        found = session.execute(select(func.min(time), func.max(time))).one()
        times += [one.timestamp() for one in found if one is not None]
    for column in (table.table.c for table, _ in RAW):
        of_level = column.level == "day_tenant"
        bounds = select(func.min(column.start_s), func.max(column.start_s)).where(of_level)
        times += [found for found in session.execute(bounds).one() if found is not None]
    if not times:
        return range(0)
    first_s = max(int(min(times)) // DAY_S * DAY_S, kept_from_s)
    last_s = int(max(times)) // DAY_S * DAY_S + DAY_S
    if begin_s is not None:
        first_s = max(first_s, -(-begin_s // DAY_S) * DAY_S)
    if end_s is not None:
        last_s = min(last_s, end_s // DAY_S * DAY_S)
    return range(first_s, last_s, DAY_S)


def _apps(session: Session, day_s: int) -> dict[str, set[str]]:
    """Return the tenants and apps with rows on a day, raw or rolled up."""
    begin, end = datetime.fromtimestamp(day_s, UTC), datetime.fromtimestamp(day_s + DAY_S, UTC)
    queries = [
        select(source.tenant_id, source.app_id).where(time >= begin, time < end).distinct()
        for source, time in _SOURCES
    ]
    for column in (table.table.c for table, _ in RAW):
        in_day = (column.start_s >= day_s, column.start_s < day_s + DAY_S)
        queries += [
            select(column.tenant_id, column.app_id).where(column.level == name, *in_day).distinct()
            for name in LEVELS
            if not name.endswith("tenant")
        ]
    apps: dict[str, set[str]] = {}
    for query in queries:
        for tenant_id, app_id in session.execute(query):
            apps.setdefault(tenant_id, set()).add(app_id)
    return apps


def _is_marked(session: Session, tenant_id: str, day_s: int) -> bool:
    found = select(UsageDirty.app_id).where(
        UsageDirty.tenant_id == tenant_id,
        UsageDirty.start_s >= day_s,
        UsageDirty.start_s < day_s + DAY_S,
    )
    return session.scalar(found.limit(1)) is not None


def _differences(
    session: Session, table: RollupTable, window: Window, raw: list[Row]
) -> Iterator[Difference]:
    column = table.table.c
    found = session.execute(
        select(table.table).where(
            column.level.in_(LEVELS),
            column.tenant_id == window.tenant_id,
            column.start_s >= window.begin_s,
            column.start_s < window.end_s,
        )
    )
    plain = [row | {name: weight(row[name]) for name in table.digests} for row in raw]
    expected = [
        row
        for span in SPANS
        for detail in DETAILS
        for row in fold(table, plain, span, detail, merge=sum)
    ]
    rolled_up = {
        _key(table, row): row | {name: weight(row[name]) for name in table.digests}
        for row in map(dict, found.mappings())
    }
    by_key = {_key(table, row): row for row in expected}
    for key in sorted(rolled_up.keys() | by_key.keys()):
        level, start_s, *rest = key
        for name in (*table.sums, *table.digests):
            one = rolled_up.get(key, {}).get(name, 0)
            other = by_key.get(key, {}).get(name, 0)
            if not math.isclose(one, other, rel_tol=1e-9):
                yield Difference(
                    table.table.name,
                    level,
                    window.tenant_id,
                    start_s,
                    tuple(rest),
                    name,
                    one,
                    other,
                )


def _key(table: RollupTable, row: Row) -> tuple[Any, ...]:
    return (row["level"], row["start_s"], *(row[name] for name in table.keys))
