"""The table at the end: a row per figure, a column per system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairserve.benchmarks.demo.workload import FLOODER, WELL_BEHAVED
from fairserve.benchmarks.text_table import aligned

Summary = Mapping[str, Any]

_GROUPS = ((WELL_BEHAVED, "well-behaved"), (FLOODER, "flooder"))


def table(systems: Mapping[str, Summary]) -> str:
    """Return the figures of ``summarise`` by system name, as text."""
    rows: list[tuple[str, list[str]]] = []

    def row(label: str, show: Callable[[Summary], str]) -> None:
        rows.append((label, [show(summary) for summary in systems.values()]))

    row("interactions completed (well-behaved / flooder)", _pair(_completed))
    row("  aborted by a rejection or an error", _pair(_aborted))
    row("  unfinished when the time was over", _pair(_unfinished))
    row("calls rejected (well-behaved / flooder)", _pair(_refused))
    row("  of them in the middle of a run", _pair(_refused_mid_run))
    row("wasted tokens", lambda summary: f"{sum(summary['wasted_tokens'].values()):,}")
    for group, name in _GROUPS:
        row(f"queue delay p50 / p99, {name}", _times("queue_delay_s", group))
    for group, name in _GROUPS:
        row(f"TTFT p50 / p99, {name}", _times("ttft_s", group))
    for group, name in _GROUPS:
        row(f"run p50 / p99, {name}", _times("interaction_latency_s", group))
    row("least satisfied user", lambda summary: f"{summary['satisfied_min']:.0%}")
    row("prefix hit rate", lambda summary: f"{summary['prefix_hit_rate']:.1%}")
    row("tokens/s", lambda summary: f"{summary['throughput_tokens_per_s']['total']:,.0f}")
    return aligned(["", *systems], [[label, *cells] for label, cells in rows])


def group_of(summary: Summary, group: str) -> Summary | None:
    """Return the figures of a group; None if it made no call."""
    groups: Mapping[str, Summary] = summary["groups"]
    return groups.get(group)


def _completed(summary: Summary) -> int:
    return int(summary["completed_interactions"])


def _aborted(summary: Summary) -> int:
    return int(summary["aborted_interactions"]) - _unfinished(summary)


def _unfinished(summary: Summary) -> int:
    return int(summary["unfinished_interactions"])


def _refused(summary: Summary) -> int:
    return int(summary["refused_calls"])


def _refused_mid_run(summary: Summary) -> int:
    return int(summary["refused_mid_run"])


def _pair(figure: Callable[[Summary], int]) -> Callable[[Summary], str]:
    def show(summary: Summary) -> str:
        found = [group_of(summary, group) for group, _ in _GROUPS]
        return " / ".join("-" if group is None else str(figure(group)) for group in found)

    return show


def _times(key: str, group: str) -> Callable[[Summary], str]:
    def show(summary: Summary) -> str:
        found = group_of(summary, group)
        if found is None:
            return "-"
        waits = found["all_waits"][key]
        return f"{seconds(waits['p50'])} / {seconds(waits['p99'])}"

    return show


def seconds(wait: float | None) -> str:
    """Return a waiting time as text; one without end is ``never``."""
    return "never" if wait is None else f"{wait:.2f} s"
