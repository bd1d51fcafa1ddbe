"""Figures of one replay shown in the FairServe paper and missing in the common summary (section 5).

A *request* of its Table 3 is a run of one call, an *interaction* a run of several. Both are served
if they had their final response, among those with any answer before the replay stopped; what was
still in progress then counts as neither. Service is compared in typical calls of an app: the
weighted slice (FairServe 4.3) over the mean of the app's calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Interaction, Trace
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.fairness.cost import Linear, SliceWeights
from fairserve.scheduling.metrics import (
    ABUSIVE,
    CallSample,
    RunSample,
    Windows,
    distribution,
    jain_index,
    service_difference,
    service_rates,
    waited_s,
)

DELAYED_S = 10.0
"""Waiting time after which a call's user counts as delayed. The paper gives no threshold; this is
twenty times the computation of a mean prompt."""
_UNIT = 1000
"""Number of parts of a typical call."""


def fairserve_figures(trace: Trace, result: ReplayResult) -> dict[str, Any]:
    """Return all figures; an app's ``ttft_s`` and ``tokens_per_s`` exclude abusers."""
    runs = {interaction.interaction_id: interaction for interaction in trace.interactions}
    calls = result.calls
    good = [call for call in calls if call.group != ABUSIVE]
    single = [run for run in result.runs if len(runs[run.interaction_id].calls) == 1]
    several = [run for run in result.runs if len(runs[run.interaction_id].calls) > 1]
    slices = _slices(runs, calls)
    begin_s = min(call.arrival_s for call in calls)
    span_s = max(call.end_s for call in calls) - begin_s
    throttled = {call.client for call in calls if call.outcome == "refused"}
    return {
        "requests": _served(single),
        "interactions": _served(several),
        "delayed_users": _delayed(calls),
        "delayed_good_users": _delayed(good),
        "good_ttft_s": distribution(_ttft_s(good)),
        "throttled_good_users": len(throttled & {call.client for call in good}),
        "least_throttled_rpm": _least_rpm(calls, throttled, span_s),
        "slice_difference": service_difference(*slices, Windows()),
        "slice_jain_index": jain_index(service_rates(*slices).values()),
        "apps": _apps(runs, calls, span_s),
    }


def _served(runs: Sequence[RunSample]) -> dict[str, float]:
    """Return shares of served runs and of their users, in percent, and the number of aborted runs."""
    users = {run.client for run in runs}
    served = {run.client for run in runs if run.complete}
    return {
        "provided": 100.0 * sum(run.complete for run in runs) / (len(runs) or 1),
        "users": 100.0 * len(served) / (len(users) or 1),
        "aborted": sum(not run.complete for run in runs),
    }


def _delayed(calls: Sequence[CallSample]) -> float:
    """Return the percentage of delayed users."""
    users = {call.client for call in calls}
    late = {call.client for call in calls if waited_s(call) > DELAYED_S}
    return 100.0 * len(late) / (len(users) or 1)


def _ttft_s(calls: Iterable[CallSample]) -> Iterable[float]:
    return (c.first_token_s - c.arrival_s for c in calls if c.first_token_s is not None)


def _least_rpm(calls: Iterable[CallSample], users: set[str], span_s: float) -> float | None:
    """Return the least calls per minute of a user over the whole replay; None without users."""
    counts = Counter(call.client for call in calls if call.client in users)
    return min((60.0 * count / span_s for count in counts.values()), default=None)


def _slices(
    runs: Mapping[str, Interaction], calls: Sequence[CallSample]
) -> tuple[dict[str, list[CallSample]], Linear]:
    """Return each client's calls as uses of thousandths of a typical call, and their cost.

    The cost is in typical calls per minute if rates are per second.
    """
    weights = SliceWeights()
    totals: dict[str, list[float]] = defaultdict(list)
    for run in runs.values():
        for planned in run.calls:
            usage = TokenUsage(
                planned.input_tokens, planned.system_tokens, 0, planned.output_tokens
            )
            totals[run.app].append(weights.slice(usage))
    typical = {app: sum(slices) / len(slices) for app, slices in totals.items()}
    by_client: dict[str, list[CallSample]] = defaultdict(list)
    for call in calls:
        share = weights.slice(call.usage)
        parts = round(_UNIT * share / typical[runs[call.interaction_id].app])
        if call.outcome == "cancelled" and not parts:
            parts = _UNIT  # still queued when the replay stopped: demand without service
        by_client[call.client].append(replace(call, usage=TokenUsage(input_tokens=parts)))
    return by_client, Linear(wp=60.0 / _UNIT)


def _apps(
    runs: Mapping[str, Interaction], calls: Sequence[CallSample], span_s: float
) -> dict[str, dict[str, Any]]:
    figures = {}
    for app in sorted({run.app for run in runs.values()}):
        own = [call for call in calls if runs[call.interaction_id].app == app]
        good = [call for call in own if call.group != ABUSIVE]
        tokens = sum(call.usage.prompt_tokens + call.usage.output_tokens for call in good)
        figures[app] = {
            "served_requests": sum(call.outcome == "completed" for call in own),
            "prompt_tokens_per_s": sum(call.usage.prompt_tokens for call in own) / span_s,
            "tokens_per_s": tokens / span_s,
            "ttft_s": distribution(_ttft_s(good)),
        }
    return figures
