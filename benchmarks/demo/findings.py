"""A few sentences about the table, computed from its numbers, including unfavourable ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fairserve.benchmarks.demo.table import Summary, group_of
from fairserve.benchmarks.demo.workload import FLOODER, WELL_BEHAVED

DEFAULT = "fairserve"
WORTH_MENTIONING = 0.02
"""Relative difference below which two systems count as equal."""


def findings(systems: Mapping[str, Summary]) -> list[str]:
    """Return sentences that compare the default with the others; empty without others."""
    if DEFAULT not in systems or len(systems) < 2:
        return []
    others = {name: summary for name, summary in systems.items() if name != DEFAULT}
    sentences = [_waiting(systems[DEFAULT], others), _rejections(systems[DEFAULT], others)]
    sentences.append(_not_better(systems[DEFAULT], others))
    return [sentence for sentence in sentences if sentence]


def _waiting(default: Summary, others: Mapping[str, Summary]) -> str:
    if group_of(default, WELL_BEHAVED) is None:
        return ""

    def p99(summary: Summary) -> str:
        wait = _wait(summary, WELL_BEHAVED, "ttft_s", "p99")
        return "without end" if wait == math.inf else f"{wait:.2f} s"

    parts = [
        f"{p99(summary)} under {name}"
        for name, summary in others.items()
        if group_of(summary, WELL_BEHAVED) is not None
    ]
    return (
        f"While one user flooded, the well-behaved waited {p99(default)} (p99) for a first token "
        f"under {DEFAULT}, {' and '.join(parts)}; a rejected call waits without end."
    )


def _rejections(default: Summary, others: Mapping[str, Summary]) -> str:
    flooder = group_of(default, FLOODER)
    rejected = 0 if flooder is None else flooder["refused_calls"]
    text = (
        f"{DEFAULT} rejected {default['refused_calls']} calls, {rejected} of them the flooder's, "
        f"and {default['refused_mid_run']} in the middle of a run"
    )
    for name, summary in others.items():
        if summary["refused_mid_run"]:
            text += (
                f"; {name} cut {summary['refused_mid_run']} calls of active runs and so "
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
    """Return the figures in which the other system is better, as ``what (own against theirs)``."""
    found = []
    for group, name in ((WELL_BEHAVED, "well-behaved"), (FLOODER, "flooder")):
        label = f"completed interactions of the {name}"
        own, theirs = _completed(default, group), _completed(other, group)
        found.append(_better(label, own, theirs, "", True))
        for label, key, percentile in (
            ("queue delay p99", "queue_delay_s", "p99"),
            ("TTFT p50", "ttft_s", "p50"),
            ("TTFT p99", "ttft_s", "p99"),
            ("run p50", "interaction_latency_s", "p50"),
            ("run p99", "interaction_latency_s", "p99"),
        ):
            own = _wait(default, group, key, percentile)
            theirs = _wait(other, group, key, percentile)
            found.append(_better(f"{label} of the {name}", own, theirs, " s", False))
    for label, own, theirs, more in (
        ("rejected calls", default["refused_calls"], other["refused_calls"], False),
        ("wasted tokens", *(sum(s["wasted_tokens"].values()) for s in (default, other)), False),
        ("least satisfied user", default["satisfied_min"], other["satisfied_min"], True),
        ("prefix hit rate", default["prefix_hit_rate"], other["prefix_hit_rate"], True),
        ("tokens/s", *(s["throughput_tokens_per_s"]["total"] for s in (default, other)), True),
    ):
        found.append(_better(label, own, theirs, "", more))
    return found


def _better(label: str, own: float | None, theirs: float | None, unit: str, more: bool) -> str:
    if own is None or theirs is None or own == theirs:
        return ""
    if math.isinf(own):
        return f"{label} (without end against {_show(theirs)}{unit})"
    gain = theirs - own if more else own - theirs
    if gain <= WORTH_MENTIONING * max(abs(own), abs(theirs)):
        return ""
    return f"{label} ({_show(own)}{unit} against {_show(theirs)}{unit})"


def _show(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.2f}"


def _completed(summary: Summary, group: str) -> float | None:
    found = group_of(summary, group)
    return None if found is None else float(found["completed_interactions"])


def _wait(summary: Summary, group: str, key: str, percentile: str) -> float | None:
    """Return a waiting time; None for a group without calls, infinite for a wait without end."""
    found = group_of(summary, group)
    if found is None:
        return None
    wait = found["all_waits"][key][percentile]
    return math.inf if wait is None else float(wait)
