"""Satisfaction of the demo's users under each system: their service over their entitlement.

Users begin their runs at fixed times, whatever happens to the earlier ones. So a user's demand is
known beforehand as all runs of the schedule: alone on these workers a well-behaved user would
complete them all. A user's entitlement is its part of the largest total that any system served,
divided by water-filling of the demands, equal for all systems. A run counts as its number of calls,
a partial run by its tokens, cached ones included: WSC's currency, with the mean completed run of an
app as the typical one.

Weakness: even alone, the flooder could not complete all runs that it begins. But it requests more
than its share in any case, and nobody is entitled to more than the others leave.
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
    """Return by system and user the served share, 0 to 1, of the user's entitlement.

    ``runs`` is the schedule, ``recorders`` contain the clients' observations, by system.
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
    """Return the mean weighted tokens of an app's completed runs, under all systems."""
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
    """Return service by user in typical calls; 0 for an app without a completed run."""
    served: dict[str, float] = defaultdict(float)
    for call in recorder.calls:
        app = app_of[call.client]
        if app in typical:
            served[call.client] += _CALLS[app] * _WEIGHTS.slice(call.usage) / typical[app]
    return served
