"""Sentences of a preview: the differences, the omissions, and the accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]

_LEFT_OUT = {
    "incomplete_runs": "{} runs with calls that are missing in the recording",
    "empty_calls": "{} calls without output",
    "runs_of_other_models": "{} runs with calls of other models",
    "runs_too_large": "{} runs with a call that does not fit into a worker",
    "refusals_of_other_models": "{} rejected calls of other models",
    "refusals_by_other_reasons": "{} calls rejected by budgets, allowed models or a draining server",
    "refused_runs_of_unseen_apps": "{} rejected runs of apps without an accepted run",
    "refusals_mid_run": "the remaining calls of {} rejected runs that are not in the recording",
}
ALWAYS_LEFT_OUT = (
    "runs that began before the window or are in progress",
    "budgets, limits of new users, limits and time-outs of the queue, failures, and profile learning",
)
_GOOD, _FAIR, _POOR = "good", "fair", "poor"


def left_out_sentences(
    left_out: Mapping[str, int], damaged: int, notes: Sequence[str]
) -> list[str]:
    """Return the parts of the traffic and the behaviour that are not replayed."""
    found = [_LEFT_OUT[name].format(number) for name, number in left_out.items()]
    if damaged:
        found.append(f"{damaged} damaged lines of the recording")
    return [*found, *ALWAYS_LEFT_OUT, *notes]


def trust(figures: Figures, calls: int) -> str:
    """Return ``good``, ``fair`` or ``poor``: the worst grade of rejections and queue delays."""
    refused = _near(
        figures["refused_calls"],
        ((_GOOD, 1.25, max(5.0, 0.01 * calls)), (_FAIR, 2.0, max(10.0, 0.03 * calls))),
    )
    delays = [
        _near(figures[name], ((_GOOD, 1.5, 0.25), (_FAIR, 3.0, 1.0)))
        for name in ("queue_delay_p50_s", "queue_delay_p99_s")
    ]
    return max((refused, *delays), key=(_GOOD, _FAIR, _POOR).index)


def _near(pair: Figures, grades: Sequence[tuple[str, float, float]]) -> str:
    """Return the first grade whose factor or difference covers the two values."""
    measured, simulated = pair["measured"] or 0.0, pair["simulated"] or 0.0
    low, high = sorted((measured, simulated))
    for grade, factor, difference in grades:
        if high <= low * factor or high - low <= difference:
            return grade
    return _POOR


def sentences(
    current: Figures,
    proposed: Figures,
    users: Sequence[Figures],
    fidelity: Figures,
    estimated_runs: int,
) -> list[str]:
    """Return the sentences that an operator reads before applying a change."""
    found = [_refused(current, proposed)]
    found += _distributions(current, proposed)
    found += _interactions(current, proposed)
    found += _shares(current, proposed)
    if users:
        more = sum(user["refused"]["proposed"] > user["refused"]["current"] for user in users)
        less = sum(user["refused"]["proposed"] < user["refused"]["current"] for user in users)
        changed = [f"more calls of {_users(more)}"] if more else []
        changed += [f"fewer calls of {_users(less)}"] if less else []
        if changed:
            found.append(f"The change would have rejected {' and '.join(changed)}.")
    if estimated_runs:
        runs = "rejected run" if estimated_runs == 1 else "rejected runs"
        found.append(f"{estimated_runs} {runs} did not run to the end; their usage is estimated.")
    found.append(_trust(fidelity))
    return found


def _users(number: int) -> str:
    return f"{number} user{'' if number == 1 else 's'}"


def _refused(current: Figures, proposed: Figures) -> str:
    was, will = current["refused_calls"], proposed["refused_calls"]
    if was == will:
        return f"The number of rejected calls would have been the same: {was}."
    return f"{will} calls would have been rejected instead of {was}."


def _distributions(current: Figures, proposed: Figures) -> list[str]:
    found = []
    for name, part, text in (
        ("queue_delay_s", "p99", "p99 queue delay"),
        ("queue_delay_s", "p50", "median queue delay"),
        ("ttft_s", "p99", "p99 time to first token"),
        ("interaction_latency_s", "p50", "median duration of a run"),
        ("interaction_latency_s", "p99", "p99 duration of a run"),
    ):
        was, will = current[name][part], proposed[name][part]
        if _differ(was, will):
            found.append(f"The {text} would have been {_seconds(will)} instead of {_seconds(was)}.")
    return found or ["Delays and durations would have been about the same."]


def _differ(one: float | None, other: float | None) -> bool:
    """Return whether the difference of two values is worth reporting."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) > max(0.05 * max(one, other), 0.005)


def _interactions(current: Figures, proposed: Figures) -> list[str]:
    found = []
    for name, text in (
        ("completed_interactions", "runs would have completed"),
        ("aborted_interactions", "runs would have been aborted"),
        ("refused_mid_run", "calls of runs in progress would have been rejected"),
        ("wasted_tokens", "tokens would have been wasted"),
    ):
        was, will = current[name], proposed[name]
        if was != will:
            found.append(f"{will} {text} instead of {was}.")
    return found


def _shares(current: Figures, proposed: Figures) -> list[str]:
    found = []
    for name, text, least, unit in (
        ("jain_index", "fairness of the users' service (Jain's index)", 0.01, ""),
        ("prefix_hit_rate", "prefix cache hit rate", 0.01, ""),
        (
            "throughput_tokens_per_s",
            "throughput",
            0.01 * current["throughput_tokens_per_s"],
            " tokens/s",
        ),
    ):
        was, will = current[name], proposed[name]
        if abs(was - will) >= max(least, 1e-9):
            digits = 0 if unit else 2
            found.append(
                f"The {text} would have been {will:.{digits}f}{unit} instead of {was:.{digits}f}."
            )
    return found


def _trust(fidelity: Figures) -> str:
    refused, delay = fidelity["refused_calls"], fidelity["queue_delay_p99_s"]
    return (
        f"Trust: {fidelity['trust']}. With the current settings the replay rejects "
        f"{refused['simulated']} calls (measured: {refused['measured']}) and has a p99 queue delay of "
        f"{_seconds(delay['simulated'])} (measured: {_seconds(delay['measured'])})."
    )


def _seconds(value: float | None) -> str:
    """Format seconds with two significant digits, or as milliseconds."""
    if value is None:
        return "none"
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value >= 0.995 else f"{value:.2f} s"
