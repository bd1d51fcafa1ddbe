"""A few sentences about the table, computed from its numbers, the unfavourable ones included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairserve.platform.demo.table import Summary, group_of
from fairserve.platform.demo.workload import FLOODER, WELL_BEHAVED

DEFAULT = "fairserve"
WORTH_MENTIONING = 0.02
"""Relative difference below which two systems count as equal."""


def findings(systems: Mapping[str, Summary]) -> list[str]:
    """Sentences that compare the default with the others; none if there is nothing to compare."""
    if DEFAULT not in systems or len(systems) < 2:
        return []
    others = {name: summary for name, summary in systems.items() if name != DEFAULT}
    sentences = [_waiting(systems[DEFAULT], others), _refusals(systems[DEFAULT], others)]
    sentences.append(_not_better(systems[DEFAULT], others))
    return [sentence for sentence in sentences if sentence]


def _waiting(default: Summary, others: Mapping[str, Summary]) -> str:
    own = _figure(default, WELL_BEHAVED, "ttft_s", "p99")
    if own is None:
        return ""
    parts = [
        f"{theirs:.2f} s under {name}"
        for name, summary in others.items()
        if (theirs := _figure(summary, WELL_BEHAVED, "ttft_s", "p99")) is not None
    ]
    return (
        f"While one user flooded, the well-behaved waited {own:.2f} s (p99) for a first token "
        f"under {DEFAULT}, {' and '.join(parts)}."
    )


def _refusals(default: Summary, others: Mapping[str, Summary]) -> str:
    flooder = group_of(default, FLOODER)
    refused = 0 if flooder is None else flooder["refused_calls"]
    text = (
        f"{DEFAULT} refused {default['refused_calls']} calls, {refused} of them the flooder's, "
        f"and {default['refused_mid_run']} in the middle of a run"
    )
    for name, summary in others.items():
        if summary["refused_mid_run"]:
            text += (
                f"; {name} cut {summary['refused_mid_run']} calls out of runs under way and so "
                f"wasted {summary['wasted_tokens']['throttled']:,} tokens"
            )
    return text + "."


def _not_better(default: Summary, others: Mapping[str, Summary]) -> str:
    parts = []
    for name, summary in others.items():
        better = [text for text in _comparisons(default, summary) if text]
        if better:
            parts.append(f"than {name} in {', '.join(better)}")
    if not parts:
        return f"In no figure of the table was {DEFAULT} worse than another system."
    return f"{DEFAULT} was worse " + "; ".join(parts) + "."


def _comparisons(default: Summary, other: Summary) -> list[str]:
    """What the other system did better, each as ``what (own against theirs)``."""
    found = []
    for group, name in ((WELL_BEHAVED, "well-behaved"), (FLOODER, "flooder")):
        for label, path, unit, more in (
            ("completed interactions", ("completed_interactions",), "", True),
            ("queue delay p99", ("queue_delay_s", "p99"), " s", False),
            ("TTFT p50", ("ttft_s", "p50"), " s", False),
            ("TTFT p99", ("ttft_s", "p99"), " s", False),
        ):
            own, theirs = _figure(default, group, *path), _figure(other, group, *path)
            found.append(_better(f"{label} of the {name}", own, theirs, unit, more))
    for label, own, theirs, more in (
        ("refused calls", default["refused_calls"], other["refused_calls"], False),
        ("wasted tokens", *(sum(s["wasted_tokens"].values()) for s in (default, other)), False),
        ("Jain's index", default["jain_index"], other["jain_index"], True),
        ("prefix hit rate", default["prefix_hit_rate"], other["prefix_hit_rate"], True),
        ("tokens/s", *(s["throughput_tokens_per_s"]["total"] for s in (default, other)), True),
    ):
        found.append(_better(label, own, theirs, "", more))
    return found


def _better(label: str, own: float | None, theirs: float | None, unit: str, more: bool) -> str:
    if own is None or theirs is None:
        return ""
    gain = theirs - own if more else own - theirs
    if gain <= WORTH_MENTIONING * max(abs(own), abs(theirs)):
        return ""
    return f"{label} ({_show(own)}{unit} against {_show(theirs)}{unit})"


def _show(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.2f}"


def _figure(summary: Summary, group: str, *path: str) -> float | None:
    value: Any = group_of(summary, group)
    for key in path:
        if value is None:
            return None
        value = value[key]
    return None if value is None else float(value)
