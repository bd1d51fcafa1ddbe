"""The table printed by a simulation: a row per system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairserve.benchmarks.text_table import aligned

Summary = Mapping[str, Any]

_COLUMNS = (
    "system",
    "tok/s",
    "TTFT mean",
    "p50",
    "p99",
    "queue p99",
    "difference max",
    "avg",
    "Jain",
    "hit rate",
    "refused",
    "in a run",
    "aborted",
    "wasted tokens",
    "makespan",
)


def table(outcomes: Iterable[tuple[str, Summary]]) -> str:
    """Return all systems, and under each its groups if it has several."""
    rows: list[Sequence[str]] = []
    for name, summary in outcomes:
        rows.append(_row(name, summary))
        groups = summary.get("groups", {})
        if len(groups) > 1:
            rows += [_row(f"  {group}", figures) for group, figures in groups.items()]
    return aligned(_COLUMNS, rows)


def _row(name: str, summary: Summary) -> list[str]:
    ttft, difference = summary["ttft_s"], summary["service_difference"]
    return [
        name,
        f"{summary['throughput_tokens_per_s']['total']:,.0f}",
        seconds(ttft["mean"]),
        seconds(ttft["p50"]),
        seconds(ttft["p99"]),
        seconds(summary["queue_delay_s"]["p99"]),
        f"{difference['max']:,.0f}",
        f"{difference['avg']:,.0f}",
        f"{summary['jain_index']:.3f}",
        f"{summary['prefix_hit_rate']:.1%}",
        f"{summary['refused_calls']:,}",
        f"{summary['refused_mid_run']:,}",
        f"{summary['aborted_interactions']:,}",
        f"{sum(summary['wasted_tokens'].values()):,}",
        f"{summary['makespan_s']:,.0f} s",
    ]


def seconds(value: float | None) -> str:
    """Return about three digits; a dash without a value."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"
