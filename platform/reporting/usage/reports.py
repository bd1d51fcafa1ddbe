"""Usage reports from the rollups, never from raw rows.

One statement sums a page of groups and counts all groups; others read the digests of the page's groups,
rejections by reason, and the fairness over all groups. Names are ordered by bytes, independent of the
database's collation, and equal sums by name, so that pages do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import (
    ColumnElement,
    Integer,
    Subquery,
    collate,
    func,
    literal,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.sums import sum_of
from fairserve.platform.db.usage import UsageState
from fairserve.platform.reporting.settings import ReportSettings
from fairserve.platform.reporting.usage.digests import merged, quantiles
from fairserve.platform.reporting.usage.fairness import Measure, add_fairness, division, measure_of
from fairserve.platform.reporting.usage.levels import (
    CALLS,
    DAY_S,
    REFUSALS,
    RUNS,
    STATES,
    WASTE_CAUSES,
    RollupTable,
)
from fairserve.platform.reporting.usage.schemas import (
    Group,
    InteractionCounts,
    Quantiles,
    Sort,
    Sums,
    Usage,
    UsageQuery,
    UsageReport,
    UsageRow,
    WastedByCause,
)
from fairserve.platform.reporting.usage.selection import Selection
from fairserve.platform.reporting.usage.table import MAX_ROWS
from fairserve.platform.reporting.usage.zones import day_bounds, local_day, offsets, zone_named

MAX_HOURS_DAYS = 100
"""Maximum days of a report by hours."""
_RANKS = (0.5, 0.9, 0.99)
_DIGESTS = {"queue_delay_s": "queue_delay", "ttft_s": "ttft"}

_SORTED_BY: Mapping[Sort, Sequence[str]] = {
    "input_tokens": ("input_tokens", "system_tokens"),
    "tokens": ("input_tokens", "system_tokens", "output_tokens"),
}
"""Stored sums that are added to the one that a report is sorted by, unless it is one itself."""

Key = tuple[Any, ...]


def report(
    session: Session,
    query: UsageQuery,
    *,
    tenant_id: str | None,
    app_id: str | None,
    currency: str = "USD",
    measure: Measure = Measure(),
    max_groups: int | None = None,
) -> UsageReport:
    """Return the report for ``query``, within a tenant and an app; None for all.

    ``measure`` defines service for fairness. Raises InvalidRequestError for an unknown zone, for a
    report by hours over too many days, and for more than ``max_groups`` groups.
    """
    zone = zone_named(query.zone)
    selection = _selection(session, query, zone, tenant_id, app_id)
    sums = _sums_of_all(session, selection)
    divided = division(session, selection, measure)
    if selection.groups:
        total, page = _page(session, selection, query)
        if max_groups is not None and total > max_groups:
            raise InvalidRequestError(
                f"the report has {total:,} rows; this format allows {max_groups:,}: restrict it with"
                f" from, to or other filters, or request an export, which allows {MAX_ROWS:,}",
                param="format",
            )
        items = [UsageRow(**_named(selection, key, zone), **usage) for key, usage in page]
        keys = [key for key, _ in page]
        _add_details(session, selection, keys, items, total)
        if divided is not None:
            add_fairness(session, selection, measure, divided, keys, items)
    else:
        total, items = 1, [UsageRow(**sums.model_dump())][query.offset :]
    rolled_up_s = session.scalar(select(UsageState.rolled_up_s))
    return UsageReport(
        group_by=list(selection.groups),
        zone=query.zone,
        currency=currency,
        as_of=datetime.fromtimestamp(rolled_up_s, UTC) if rolled_up_s else None,
        items=items,
        total=total,
        limit=query.limit,
        offset=query.offset,
        sums=sums,
        jain_index=None if divided is None else divided.jain_index,
        names=_names(session, items),
    )


def reporter(
    session: Session, settings: ReportSettings, *, tenant_id: str | None, app_id: str | None
) -> partial[UsageReport]:
    """Return :func:`report` with this server's settings, within a tenant and an app."""
    return partial(
        report,
        session,
        tenant_id=tenant_id,
        app_id=app_id,
        currency=settings.tenancy.currency,
        measure=measure_of(session, settings),
    )


def check(session: Session, query: UsageQuery, *, tenant_id: str | None) -> None:
    """Raise InvalidRequestError as :func:`report` does, except for too many groups."""
    _selection(session, query, zone_named(query.zone), tenant_id, query.app)


def reject_tenant_groups(query: UsageQuery) -> None:
    """Raise InvalidRequestError for groups by tenant in a report of one tenant."""
    if "tenant" in query.group_by:
        raise InvalidRequestError(
            "group_by must be among app, user, model, service_tier, day and hour", param="group_by"
        )


def _selection(
    session: Session,
    query: UsageQuery,
    zone: ZoneInfo,
    tenant_id: str | None,
    app_id: str | None,
) -> Selection:
    groups = list(query.group_by)
    if tenant_id is None and "user" in groups and "tenant" not in groups:
        groups.insert(0, "tenant")  # equal user ids in two tenants are two users
    begin_s, end_s = day_bounds(query.first_day, query.last_day, zone)
    held_from_s, held_until_s = _held(session, tenant_id)
    first_s = held_from_s if begin_s is None else max(begin_s, held_from_s)
    last_s = max(first_s, held_until_s if end_s is None else min(end_s, held_until_s))
    if "hour" in groups and last_s - first_s > MAX_HOURS_DAYS * DAY_S:
        raise InvalidRequestError(
            f"a report by hours covers at most {MAX_HOURS_DAYS} days; restrict it with from and to",
            param="from",
        )
    return Selection(
        groups=tuple(groups),
        tenant_id=tenant_id,
        app_id=app_id,
        user_id=query.user,
        model=query.model,
        begin_s=begin_s,
        end_s=end_s,
        offsets=offsets(zone, first_s, last_s),
    )


def _held(session: Session, tenant_id: str | None) -> tuple[int, int]:
    """Return the first and the last second of the rollups."""
    begins, ends = [], []
    for table in (CALLS, RUNS):
        column = table.table.c
        found = select(func.min(column.start_s), func.max(column.start_s)).where(
            column.level == "day_tenant",
            *(() if tenant_id is None else (column.tenant_id == tenant_id,)),
        )
        first_s, last_s = session.execute(found).one()
        if first_s is not None:
            begins.append(first_s)
            ends.append(last_s + DAY_S)
    return min(begins, default=0), max(ends, default=0)


def _page(
    session: Session, selection: Selection, query: UsageQuery
) -> tuple[int, list[tuple[Key, dict[str, Any]]]]:
    """Return the number of groups, and the keys and sums of one page of them."""
    found = _all_sums(selection)
    keys = _ordered(session, [found.c[group] for group in selection.groups])
    sums = [column for column in found.c if column.name not in selection.groups]
    count = func.count().over().label("groups_in_all")
    totals = [sum_of(column).label(column.name) for column in sums]
    grouped = select(*keys, *totals, count).group_by(*keys)
    first = [] if query.sort == "name" else [_amount(found, query.sort).desc()]
    ordered = grouped.order_by(*first, *keys)
    rows = session.execute(ordered.limit(query.limit).offset(query.offset)).all()
    if not rows and query.offset:
        distinct = select(*keys).group_by(*keys).subquery()
        return session.scalar(select(func.count()).select_from(distinct)) or 0, []
    size = len(selection.groups)
    return (
        int(rows[0].groups_in_all) if rows else 0,
        [(tuple(row[:size]), _usage(row._asdict())) for row in rows],
    )


def _amount(found: Subquery, sort: Sort) -> ColumnElement[Any]:
    """Return the sum of a group that it is ordered by."""
    first, *rest = (sum_of(found.c[name]) for name in _SORTED_BY.get(sort, (sort,)))
    return sum(rest, start=first)


def _all_sums(selection: Selection) -> Subquery:
    """Sum calls and runs by group: a group has one or two rows."""
    tables = (CALLS,) if selection.calls_only else (CALLS, RUNS)
    names = [(table, name) for table in tables for name in table.sums]
    parts = []
    for table in tables:
        keys = selection.keys(table)
        sums = [
            (sum_of(table.table.c[name]) if of is table else literal(0, Integer)).label(
                _label(of, name)
            )
            for of, name in names
        ]
        part = select(*keys, *sums).where(*selection.where(table))
        parts.append(part.group_by(*keys) if keys else part)
    return union_all(*parts).subquery()


def _label(table: RollupTable, name: str) -> str:
    """Return a unique label: calls and runs both have a column ``cancelled``."""
    return f"run_{name}" if table is RUNS else name


def _ordered(session: Session, keys: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Return keys that compare by bytes, as in SQLite."""
    if session.get_bind().dialect.name != "postgresql":
        return list(keys)
    return [
        collate(key, "C").label(key.name) if key.name not in ("day", "hour") else key
        for key in keys
    ]


def _usage(found: dict[str, Any]) -> dict[str, Any]:
    """Convert sums, which are null without rows, and decimals for integers in PostgreSQL."""
    usage: dict[str, Any] = {
        name: float(found[name] or 0) if name == "service" else int(found[name] or 0)
        for name in Sums.model_fields
    }
    usage["input_tokens"] += usage["system_tokens"]  # stored separately
    usage["cost"] = Decimal(int(found["cost"] or 0)).scaleb(-9)
    usage["unpriced_calls"] = int(found["unpriced_calls"] or 0)
    for field, name in _DIGESTS.items():
        usage[field] = Quantiles(count=int(found[f"{name}_count"] or 0))
    if "run_complete" in found:
        usage["interactions"] = InteractionCounts(
            **{state: int(found[f"run_{state}"] or 0) for state in STATES}
        )
        usage["wasted_by_cause"] = WastedByCause(
            **{cause: int(found[f"run_wasted_{cause}"] or 0) for cause in WASTE_CAUSES}
        )
    return usage


def _sums_of_all(session: Session, selection: Selection) -> Usage:
    """Return the sums over all groups, read at the coarsest level."""
    everything = selection.grouped()
    found = _all_sums(everything)
    row = session.execute(select(*(sum_of(column).label(column.name) for column in found.c)))
    usage = Usage(**_usage(row.one()._asdict()))
    _add_details(session, everything, [()], [usage], 1)
    return usage


def _add_details(
    session: Session, selection: Selection, keys: Sequence[Key], items: Sequence[Usage], total: int
) -> None:
    """Add quantiles and rejections to a page's groups; ``total`` is the number of all groups."""
    if not items:
        return
    digests: dict[Key, dict[str, list[bytes | None]]] = {
        key: {name: [] for name in CALLS.digests} for key in keys
    }
    size = len(selection.groups)
    column = CALLS.table.c
    order = [column[name] for name in ("start_s", "tenant_id", *CALLS.keys)]
    for row in session.execute(
        select(*selection.keys(CALLS), *(column[name] for name in CALLS.digests))
        .where(*selection.where(CALLS), *_of_page(session, selection, CALLS, keys, total))
        .where(column.queue_delay_count + column.ttft_count > 0)
        .order_by(*order)
    ):
        of_group = digests.get(tuple(row[:size]))
        if of_group is None:
            continue  # a group that was rolled up since
        for name, digest in zip(CALLS.digests, row[size:], strict=True):
            of_group[name].append(digest)
    for key, usage in zip(keys, items, strict=True):
        for field, name in _DIGESTS.items():
            found = quantiles(merged(digests[key][f"{name}_digest"]), _RANKS)
            if found is not None:
                count = getattr(usage, field).count
                p50, p90, p99 = found
                setattr(usage, field, Quantiles(p50=p50, p90=p90, p99=p99, count=count))
    if not selection.calls_only:
        _add_rejections(session, selection, keys, items, total)


def _add_rejections(
    session: Session, selection: Selection, keys: Sequence[Key], items: Sequence[Usage], total: int
) -> None:
    by_key = dict(zip(keys, items, strict=True))
    for usage in items:
        usage.refusals = {}
    column = REFUSALS.table.c
    groups = [*selection.keys(REFUSALS), column.reason]
    for *key, reason, count in session.execute(
        select(*groups, sum_of(column["count"]))
        .where(*selection.where(REFUSALS), *_of_page(session, selection, REFUSALS, keys, total))
        .group_by(*groups)
        .order_by(column.reason)
    ):
        if (found := by_key.get(tuple(key))) is not None:  # else nothing but rejections
            assert found.refusals is not None
            found.refusals[reason] = int(count)


def _of_page(
    session: Session, selection: Selection, table: RollupTable, keys: Sequence[Key], total: int
) -> list[ColumnElement[bool]]:
    """Return the conditions for the groups of a page; none for all groups, which may be too many."""
    if len(keys) == total:
        return []
    columns = tuple_(*_ordered(session, selection.keys(table)))
    return [columns.in_(keys)]


def _named(selection: Selection, key: Key, zone: ZoneInfo) -> dict[Group, Any]:
    named: dict[Group, Any] = dict(zip(selection.groups, key, strict=True))
    if "day" in named:
        named["day"] = local_day(int(named["day"]))
    if "hour" in named:
        named["hour"] = datetime.fromtimestamp(int(named["hour"]), zone)
    return named


def _names(session: Session, items: Sequence[UsageRow]) -> dict[str, str]:
    names: dict[str, str] = {}
    for table, ids in (
        (Tenant, {row.tenant for row in items}),
        (App, {row.app for row in items}),
    ):
        some = sorted(id for id in ids if id is not None)
        found = session.execute(select(table.id, table.name).where(table.id.in_(some)))
        names.update((row.id, row.name) for row in found)
    return names
