"""Satisfaction of the users by each system of the demo: their service over their entitlement.

Users begin their runs at fixed times, whatever becomes of the earlier ones. So a user's demand is known
beforehand, all runs of the schedule: alone on these workers a well-behaved user would get them all. What
each is entitled to is its part of the most that any system served, shared out by water-filling of the
demands, the same for all systems. A run counts as many as it has calls, a part of one by its tokens,
cached ones included: WSC's currency, with the average completed run of an app as its typical one.

Weakness: alone, the flooder could not get all that it begins either. But it asks for more than its share
in any case, and nobody is entitled to more than the others leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from fairserve.benchmarks.demo.recorder import Recorder
from fairserve.benchmarks.demo.workload import LOADS, PlannedRun
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.metrics import satisfied, water_filling

_CALLS = {load.app: load.calls_per_run for load in LOADS}
_WEIGHTS = SliceWeights()


def satisfaction(
    runs: Sequence[PlannedRun], recorders: Mapping[str, Recorder]
) -> dict[str, dict[str, float]]:
    """By system and user the share, 0 to 1, of what the user is entitled to that it was served.

    ``runs`` is the schedule, ``recorders`` what the clients saw, by system.
    """
    app_of = {run.client: run.app for run in runs}
    typical = _typical_runs(app_of, recorders.values())
    demands: dict[str, float] = defaultdict(float)
    for run in runs:
        demands[run.client] += _CALLS[run.app]
    served = {system: _served(recorder, app_of, typical) for system, recorder in recorders.items()}
    total = max(sum(each.values()) for each in served.values())
    entitled = water_filling(demands, total)
    return {system: satisfied(each, entitled) for system, each in served.items()}


def _typical_runs(app_of: Mapping[str, str], recorders: Iterable[Recorder]) -> dict[str, float]:
    """By app the weighted tokens of its completed runs on average, under all systems."""
    seen: dict[str, list[float]] = defaultdict(list)
    for recorder in recorders:
        tokens: dict[str, float] = defaultdict(float)
        for call in recorder.calls:
            tokens[call.interaction_id] += _WEIGHTS.slice(call.usage)
        for run in recorder.runs:
            if run.complete:
                seen[app_of[run.client]].append(tokens[run.interaction_id])
    return {app: fmean(values) for app, values in seen.items()}


def _served(
    recorder: Recorder, app_of: Mapping[str, str], typical: Mapping[str, float]
) -> dict[str, float]:
    """By user, in typical calls; of an app without a completed run nothing."""
    served: dict[str, float] = defaultdict(float)
    for call in recorder.calls:
        app = app_of[call.client]
        if app in typical:
            served[call.client] += _CALLS[app] * _WEIGHTS.slice(call.usage) / typical[app]
    return served
