"""Entitlement of clients, computed outside the runs that are judged.

A client's *demand* is what it receives in a separate run, on the whole cluster, under FCFS. Its
*entitlement* is its part of the best total that any system reaches on the same workload, divided by
water-filling of the demands: no client is entitled to more than its demand, and those entitled to
less get equal amounts. A client is *satisfied* to the share
of its entitlement that it was served, at most 1. Demand and entitlement are the same for all
systems of a cell.

All amounts are in WSC's currency: a call of the mean size of its app's calls at its stage counts 1,
cached tokens like others, whatever a system believes of profiles.

Computed from the run itself, entitlement would be lower for starved clients: programs with
dependent calls issue their next calls only when the previous ones have been answered.

Weakness: alone, a client has the whole cache and a whole batch, in which every token takes less
time. Programs of many sequential calls then have a demand that no system can meet beside other
clients: the difference between systems counts. The best total may be that of a system that serves
the cheapest calls, and it depends on the compared systems.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.job import FiguringWatcher, SimulationJob
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import Call, client_id
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.scheduling.events import Refuse
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.metrics import CallSample, Service, satisfied, water_filling
from fairserve.scheduling.registry import SYSTEMS

_WEIGHTS = SliceWeights()
_ALONE = "fcfs"
"""System under which a client's demand is measured."""
Summary = dict[str, Any]


class TypicalCalls(FiguringWatcher):
    """Observes the service of each client between two times, in typical calls of its apps."""

    def __init__(self, profiles: Mapping[str, AppProfile], begin_s: float, end_s: float) -> None:
        self._profiles, self._begin_s, self._end_s = profiles, begin_s, end_s
        self._samples: dict[str, dict[float, list[CallSample]]] = defaultdict(
            lambda: defaultdict(list)
        )
        """Calls by client and by the slice of a typical call."""

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """Record the service of an ended call."""
        typical = _WEIGHTS.typical_call(self._profiles[call.app], call.stage)
        self._samples[sample.client][typical].append(sample)

    def figures(self, result: ReplayResult) -> Mapping[str, Any]:
        """Return ``typical_calls_per_s`` by client."""
        length_s = self._end_s - self._begin_s
        return {
            "typical_calls_per_s": {
                client: sum(
                    Service(calls, _WEIGHTS.slice).between(self._begin_s, self._end_s) / typical
                    for typical, calls in by_typical.items()
                )
                / length_s
                for client, by_typical in self._samples.items()
            }
        }


def simulate_with_entitlement(
    setting: Setting, jobs: Mapping[str, Sequence[SimulationJob]], begin_s: float, end_s: float
) -> dict[str, list[Summary]]:
    """Run the jobs of one cell and compute the satisfaction of the clients under each.

    ``jobs`` are one per seed by the name of a system, with the same traces under all. The summaries
    get additional keys: ``typical_calls_per_s`` and ``satisfied`` by client, and ``satisfied_min``.
    """
    alone, watched = {}, {}
    for name, of_seeds in jobs.items():
        watched[name] = [_watched(job, job.trace, begin_s, end_s) for job in of_seeds]
    first = next(iter(jobs.values()))
    for seed, job in enumerate(first):
        for client, trace in _by_client(job.trace).items():
            lone = replace(job, name=f"{job.name} alone", trace=trace, system=SYSTEMS[_ALONE])
            alone[f"{seed} {client}"] = [_watched(lone, job.trace, begin_s, end_s)]
    found = setting.summaries(
        {**watched, **{("alone " + key): jobs for key, jobs in alone.items()}}
    )
    summaries = {name: [dict(summary) for summary in found[name]] for name in jobs}
    for seed, job in enumerate(first):
        demands = {
            client: found[f"alone {seed} {client}"][0]["typical_calls_per_s"].get(client, 0.0)
            for client in _by_client(job.trace)
        }
        of_systems = [of_seeds[seed] for of_seeds in summaries.values()]
        total = max(sum(each["typical_calls_per_s"].values()) for each in of_systems)
        entitled = water_filling(demands, total)
        for summary in of_systems:
            summary["satisfied"] = satisfied(summary["typical_calls_per_s"], entitled)
            summary["satisfied_min"] = min(summary["satisfied"].values())
    return summaries


def _watched(job: SimulationJob, whole: Trace, begin_s: float, end_s: float) -> SimulationJob:
    assert job.watch is None, "a replay has one watcher"
    return replace(job, watch=partial(TypicalCalls, profiles_of(whole), begin_s, end_s))


def _by_client(trace: Trace) -> dict[str, Trace]:
    runs = defaultdict(list)
    for run in trace.interactions:
        runs[client_id((run.tenant, run.user))].append(run)
    return {client: trace.with_interactions(own) for client, own in sorted(runs.items())}
