"""Three recorded apps on one worker, each of a separate tenant and each exceeding its capacity.

The loop is closed: a tenant has a fixed number of runs at a time, and a new one begins when one
ends. They are so many that every tenant has calls waiting all the time, and is entitled to a third
of the worker; calls wait at the feeder, which then decides all shares. (If all runs arrived at
once, the large calls among them, whose prompts are cached nowhere, would wait to the end, and the
served mix would not be that of the apps.) Service is counted as WSC should count it: in calls of
the app's typical size, by its true profile, with cached tokens free.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fairserve.benchmarks.reproduce.profiles.service import (
    LEARNING_INTERVAL_S,
    WEIGHTS,
    ServiceWindows,
    typical_calls,
)
from fairserve.benchmarks.reproduce.setting import Setting, delayed
from fairserve.benchmarks.simulate.job import FiguringWatcher, SimulationJob
from fairserve.benchmarks.traces.assignment import merge
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.profiles import profiles_of, stages_of
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Interaction, Trace
from fairserve.interactions.call import Call
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.scheduling.events import Refuse
from fairserve.scheduling.metrics import CallSample
from fairserve.scheduling.registry import SYSTEMS

RECORDED = {
    "autocoderover": "autocoderover_run_1.jsonl.gz",
    "tot-game24": "tot_game24.jsonl.gz",
    "tau-airline": "tau_airline_gpt4o.jsonl.gz",
}
"""Apps and their traces; the tenant of each has its name."""
AT_A_TIME = {"autocoderover": 48, "tot-game24": 8, "tau-airline": 48}
"""Number of concurrent runs of each app."""
COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=16, kv_capacity_tokens=200_000)
"""Cost model with small batches, so that calls wait at the feeder."""
DURATION_S = 900.0
WINDOW_S = 60.0
USERS = 4
LATER_S = 1e9
"""A time after the end of any replay."""


def backlogged(setting: Setting, seed: int, times: int = 2) -> Trace:
    """Return shuffled runs; the first of each app begin at once, each other one when a run ends.

    Each recorded run is repeated ``times`` times, so that an overserved app does not run out.
    Raises TraceError if the traces are missing.
    """
    parts = []
    for app, file in RECORDED.items():
        trace = setting.recorded(file)
        runs = [
            replace(run, interaction_id=f"{run.interaction_id}#{again}")
            for again in range(times)
            for run in trace.interactions
        ]
        random.Random(seed).shuffle(runs)  # noqa: S311  a workload is no secret
        parts.append(
            trace.with_interactions(
                [
                    replace(
                        run,
                        tenant=app,
                        user=f"{app}-{place % USERS}",
                        arrival_s=0.0 if place < AT_A_TIME[app] else LATER_S,
                    )
                    for place, run in enumerate(runs)
                ]
            )
        )
    return merge(parts)


def job(
    setting: Setting,
    trace: Trace,
    seed: int,
    declared: Mapping[str, AppProfile],
    learning: LearningOptions | None,
) -> SimulationJob:
    """Return a job that is stopped while all tenants still have work."""
    duration_s = DURATION_S * setting.scale
    options = ReplayOptions(
        seed=seed,
        until_s=duration_s,
        profiles=declared,
        learning=learning,
        learning_interval_s=LEARNING_INTERVAL_S,
    )
    watch = partial(BackloggedCalls, profiles_of(trace), calls_by_stage(trace), duration_s)
    return SimulationJob(
        "profiles",
        trace,
        SYSTEMS["fairserve"],
        delayed(COSTS, seed),
        options,
        watch=watch,
        replay=ClosedLoop,
    )


def calls_by_stage(trace: Trace) -> dict[str, Counter[int]]:
    """Return the number of calls in each stage, for each app of the trace."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for run in trace.interactions:
        counts[run.app].update(stages_of(run).values())
    return counts


def typical_size(profile: AppProfile, true: AppProfile, calls: Mapping[int, int]) -> float:
    """Return the mean weight of calls by a profile over that by the true one, weighted by stage."""

    def total(by: AppProfile) -> float:
        return sum(number * WEIGHTS.typical_call(by, stage) for stage, number in calls.items())

    return total(profile) / total(true)


class ClosedLoop(Replay):
    """A replay in which the end of a run starts the next one of its app."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._later: dict[str, deque[Interaction]] = defaultdict(deque)
        for run in self._trace.interactions:
            if run.arrival_s >= LATER_S:
                self._later[run.app].append(run)

    def _end_run(self, run: Any, **how: Any) -> None:
        super()._end_run(run, **how)
        later = self._later[run.interaction.app]
        if later and self._now_s < self._options.until_s:
            self._push(self._now_s, 0, replace(later.popleft(), arrival_s=self._now_s))


class BackloggedCalls(FiguringWatcher):
    """Observes the service of each app, in its typical calls."""

    def __init__(
        self,
        true: Mapping[str, AppProfile],
        calls: Mapping[str, Mapping[int, int]],
        duration_s: float,
    ) -> None:
        """Take the true profiles, and the number of calls at each stage of an app."""
        self._true, self._calls, self._duration_s = true, calls, duration_s
        self._served = ServiceWindows(true, duration_s, WINDOW_S)

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """Record the service of an ended call."""
        served = typical_calls(sample.usage, self._true[call.app], call.stage)
        self._served.add(call.app, sample.end_s, served)

    def figures(self, result: ReplayResult) -> Mapping[str, Any]:
        """Return typical calls per second by app and window, and the profiles in force."""
        return {
            "duration_s": self._duration_s,
            "typical_per_s": self._served.per_s(),
            "profiles": {
                app: [
                    {
                        "since_s": change.held.since_s,
                        "interactions": change.interactions,
                        "factor": typical_size(change.held.profile, true, self._calls[app]),
                    }
                    for change in result.profiles
                    if change.app == app
                ]
                for app, true in self._true.items()
            },
        }
