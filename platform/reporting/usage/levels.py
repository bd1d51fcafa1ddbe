"""Levels of the rollups, their tables as data, and the fold of one level into a coarser one.

A fold adds sums, up to the largest number of a column, merges digests in the order of the rows, and
empties the keys that the level sums over. The same rows in the same order result in the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Table

from fairserve.platform.db.base import Base
from fairserve.platform.db.rows import table_of
from fairserve.platform.db.sums import bounded
from fairserve.platform.db.usage import QUARTER_S, UsageCalls, UsageRejections, UsageRuns
from fairserve.platform.reporting.usage.digests import merged

DAY_S = 86_400

Span = Literal["quarter", "day"]
Detail = Literal["user", "app", "tenant"]
Row = dict[str, Any]

SPANS: Mapping[Span, int] = {"quarter": QUARTER_S, "day": DAY_S}
DETAILS: tuple[Detail, ...] = ("user", "app", "tenant")
_SUMMED_OVER: Mapping[Detail, tuple[str, ...]] = {
    "user": (),
    "app": ("user_id",),
    "tenant": ("app_id", "user_id", "model", "service_tier"),
}


@dataclass(frozen=True, slots=True)
class RollupTable:
    """A table of rollups, with its columns by their role in a fold."""

    model: type[Base]
    keys: tuple[str, ...]
    """Key columns other than level, tenant and start."""
    sums: tuple[str, ...]
    digests: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """Return the table."""
        return table_of(self.model)


TOKENS = (
    "input_tokens",
    "system_tokens",
    "cached_tokens",
    "extend_tokens",
    "output_tokens",
    "reasoning_tokens",
)
OUTCOMES = ("completed", "refused", "cancelled", "failed", "expired")
STATES = ("complete", "aborted", "cancelled", "expired")
WASTE_CAUSES = ("throttled", "cancelled", "failed", "expired")

CALLS = RollupTable(
    UsageCalls,
    ("app_id", "user_id", "model", "service_tier"),
    (
        "calls",
        *OUTCOMES,
        "uncharged_calls",
        *TOKENS,
        "service",
        "wasted_tokens",
        "cost",
        "unpriced_calls",
        "queue_delay_count",
        "ttft_count",
    ),
    ("queue_delay_digest", "ttft_digest"),
)
RUNS = RollupTable(
    UsageRuns,
    ("app_id", "user_id"),
    (*STATES, "run_calls", *(f"wasted_{cause}" for cause in WASTE_CAUSES)),
)
REFUSALS = RollupTable(UsageRejections, ("app_id", "user_id", "reason"), ("count", "mid_run"))
TABLES = (CALLS, RUNS, REFUSALS)


def level(span: Span, detail: Detail) -> str:
    """Return the value of the column ``level``."""
    return f"{span}_{detail}"


LEVELS = tuple(level(span, detail) for span in SPANS for detail in DETAILS)


def fold(
    table: RollupTable,
    rows: Iterable[Row],
    span: Span,
    detail: Detail,
    merge: Callable[[Iterable[Any]], Any] = merged,
) -> list[Row]:
    """Fold rows of a finer level into rows of this one, in the order of their keys' first occurrence.

    ``merge`` merges digests.
    """
    length_s = SPANS[span]
    dropped = {name for name in _SUMMED_OVER[detail] if name in table.keys}
    kept = tuple(name for name in table.keys if name not in dropped)
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        start_s = row["start_s"] // length_s * length_s
        key = (row["tenant_id"], start_s, *(row[name] for name in kept))
        groups.setdefault(key, []).append(row)
    empty: Row = {"level": level(span, detail), **dict.fromkeys(dropped, "")}
    folded = []
    for (_, start_s, *_), members in groups.items():
        row = members[0] | empty | {"start_s": start_s}
        if len(members) > 1:
            for name in table.sums:
                row[name] = bounded(member[name] for member in members)
            for name in table.digests:
                row[name] = merge(member[name] for member in members)
        folded.append(row)
    return folded
