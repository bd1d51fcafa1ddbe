"""Aggregate the ledger's raw rows to the finest level: quarter hours by user.

The database computes sums; only durations are read individually, for their digests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    String,
    and_,
    case,
    cast,
    false,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.db.sums import bounded, sum_of
from fairserve.platform.db.usage import QUARTER_S
from fairserve.platform.reporting.usage.digests import digest_of
from fairserve.platform.reporting.usage.levels import STATES, TOKENS, WASTE_CAUSES, Row
from fairserve.scheduling.events import CallOutcome


class Window(NamedTuple):
    """Apps of a tenant within quarter hours of one UTC day."""

    tenant_id: str
    app_ids: Sequence[str]
    begin_s: int
    end_s: int


SERVED_MODEL = func.coalesce(LedgerCall.served_model, LedgerCall.model)
"""Model to which a call is attributed."""
_SPENT = {
    "input": LedgerCall.input_tokens,
    "system": LedgerCall.system_tokens,
    "output": LedgerCall.output_tokens,
}
"""Columns of the tokens of a call. They are added as sums: those of one row may exceed 64 bits."""
_READ_ROWS = 5000


def calls(session: Session, window: Window) -> list[Row]:
    """Return rows of ``usage_calls``, in the order of their keys."""
    groups = _groups(
        session,
        window,
        LedgerCall,
        LedgerCall.accepted_at,
        SERVED_MODEL.label("model"),
        LedgerCall.service_tier.label("service_tier"),
    )
    where = _within(LedgerCall, LedgerCall.accepted_at, window)
    found = session.execute(select(*groups, *_call_sums()).where(where).group_by(*groups))
    rows = [_row(window.tenant_id, row._asdict()) for row in found]
    durations = _durations(session, groups, where)
    for row in rows:
        row["wasted_tokens"] = bounded(row.pop(f"wasted_{name}") for name in _SPENT)
        key = tuple(row[group.name] for group in groups)
        delays, ttfts = durations.get(key, ((), ()))
        row["queue_delay_digest"], row["ttft_digest"] = digest_of(delays), digest_of(ttfts)
        row["queue_delay_count"], row["ttft_count"] = len(delays), len(ttfts)
    return _ordered(rows, "model", "service_tier")


def runs(session: Session, window: Window) -> list[Row]:
    """Return rows of ``usage_runs``, in the order of their keys."""
    groups = _groups(session, window, LedgerInteraction, LedgerInteraction.ended_at)
    sums = [
        *(
            _count(LedgerInteraction, LedgerInteraction.state == state).label(state)
            for state in STATES
        ),
        sum_of(LedgerInteraction.calls).label("run_calls"),
        *(
            sum_of(
                case(
                    (LedgerInteraction.waste_cause == cause, LedgerInteraction.wasted_tokens),
                    else_=0,
                )
            ).label(f"wasted_{cause}")
            for cause in WASTE_CAUSES
        ),
    ]
    where = _within(LedgerInteraction, LedgerInteraction.ended_at, window)
    found = session.execute(select(*groups, *sums).where(where).group_by(*groups))
    return _ordered([_row(window.tenant_id, row._asdict()) for row in found])


def refusals(session: Session, window: Window) -> list[Row]:
    """Return rows of ``usage_refusals``, in the order of their keys."""
    event = ThrottlingEvent
    groups = _groups(session, window, event, event.at, event.reason.label("reason"))
    sums = [_count(event).label("count"), _count(event, event.mid_run).label("mid_run")]
    where = _within(event, event.at, window)
    found = session.execute(select(*groups, *sums).where(where).group_by(*groups))
    return _ordered([_row(window.tenant_id, row._asdict()) for row in found], "reason")


def epoch_quarter(session: Session, time: InstrumentedAttribute[datetime]) -> ColumnElement[int]:
    """Return the SQL of the start of a time's quarter hour, in epoch seconds."""
    if session.get_bind().dialect.name == "postgresql":
        quarter = func.floor(func.extract("epoch", time) / QUARTER_S)
        return cast(quarter, BigInteger) * QUARTER_S
    # SQLite stores times as text, 2026-01-31 23:59:59.999999, and would round the fraction.
    second = cast(func.strftime("%s", func.substr(cast(time, String), 1, 19)), Integer)
    return second // QUARTER_S * QUARTER_S


def _groups(
    session: Session,
    window: Window,
    table: type[LedgerCall | LedgerInteraction | ThrottlingEvent],
    time: InstrumentedAttribute[datetime],
    *more: ColumnElement[str],
) -> list[ColumnElement[Any]]:
    start = epoch_quarter(session, time)
    if window.end_s - window.begin_s == QUARTER_S:  # the usual case: calls are accepted now
        start = literal(window.begin_s, BigInteger)
    return [
        table.app_id.label("app_id"),
        start.label("start_s"),
        table.user_id.label("user_id"),
        *more,
    ]


def _within(
    table: type[LedgerCall | LedgerInteraction | ThrottlingEvent],
    time: InstrumentedAttribute[datetime],
    window: Window,
) -> ColumnElement[bool]:
    return and_(
        table.tenant_id == window.tenant_id,
        table.app_id.in_(window.app_ids),
        time >= datetime.fromtimestamp(window.begin_s, UTC),
        time < datetime.fromtimestamp(window.end_s, UTC),
    )


def _call_sums() -> list[ColumnElement[Any]]:
    charged = LedgerCall.charged
    spent = or_(*(column > 0 for column in _SPENT.values()))
    unpriced = charged & LedgerCall.price_id.is_(None) & spent
    return [
        _count(LedgerCall, charged).label("calls"),
        *(
            _count(LedgerCall, charged & (LedgerCall.outcome == outcome)).label(outcome)
            for outcome in get_args(CallOutcome)
        ),
        _count(LedgerCall, charged == false()).label("uncharged_calls"),
        *(
            sum_of(case((charged, getattr(LedgerCall, name)), else_=0)).label(name)
            for name in (*TOKENS, "service")
        ),
        *(
            sum_of(case((charged & LedgerCall.wasted, column), else_=0)).label(f"wasted_{name}")
            for name, column in _SPENT.items()
        ),
        sum_of(case((charged, LedgerCall.cost), else_=0)).label("cost"),
        _count(LedgerCall, unpriced).label("unpriced_calls"),
    ]


def _count(
    table: type[LedgerCall | LedgerInteraction | ThrottlingEvent],
    condition: ColumnElement[bool] | InstrumentedAttribute[bool] | None = None,
) -> ColumnElement[int]:
    """Return the number of calls, runs or rejections, of which some share a row."""
    each = func.coalesce(table.shared_by, 1)
    return sum_of(each if condition is None else case((condition, each), else_=0))


def _durations(
    session: Session, groups: Sequence[ColumnElement[Any]], where: ColumnElement[bool]
) -> dict[tuple[Any, ...], tuple[list[float], list[float]]]:
    """Return queue delays and times to first token of charged calls, by key."""
    durations: dict[tuple[Any, ...], tuple[list[float], list[float]]] = defaultdict(
        lambda: ([], [])
    )
    measured = or_(LedgerCall.queue_delay_s.is_not(None), LedgerCall.ttft_s.is_not(None))
    found = session.connection().execute(
        select(*groups, LedgerCall.queue_delay_s, LedgerCall.ttft_s)
        .where(where, LedgerCall.charged, measured)
        .execution_options(yield_per=_READ_ROWS)
    )
    for row in found:
        (delays, ttfts), (delay_s, ttft_s) = durations[row[:-2]], row[-2:]
        if delay_s is not None:
            delays.append(delay_s)
        if ttft_s is not None:
            ttfts.append(ttft_s)
    return durations


def _row(tenant_id: str, found: Mapping[str, Any]) -> Row:
    """Convert a row: PostgreSQL returns sums of big integers as decimals."""
    row: Row = {"level": "quarter_user", "tenant_id": tenant_id}
    for name, value in found.items():
        if name == "service":
            row[name] = float(value)
        else:
            row[name] = value if isinstance(value, str) else int(value)
    return row


def _ordered(rows: list[Row], *last: str) -> list[Row]:
    keys = ("start_s", "app_id", "user_id", *last)
    return sorted(rows, key=lambda row: [row[name] for name in keys])
