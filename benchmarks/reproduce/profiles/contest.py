"""Contest of three tenants for one worker: one may try a manipulation, two are honest.

Each requests the capacity of the whole worker all the time, and has the same work: runs of four
sequential calls of about 400 to 1,000 prompt tokens and 100 output tokens (random, the same for
each tenant). The worker is small, so that calls wait at the feeder, which decides. Useful work is
measured: the tokens of honest calls whose work was done, whatever was sent.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from fairserve.benchmarks.reproduce.profiles.service import ServiceWindows, typical_calls
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.call import Call
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.scheduling.events import CallOutcome, Refuse
from fairserve.scheduling.metrics import CallSample

COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=16, kv_capacity_tokens=60_000)
DURATION_S = 200.0
WINDOW_S = 25.0
CHEAT = "cheat"
TENANTS = (CHEAT, "honest-1", "honest-2")
ONE_TENANT = "all"
"""Name of the only tenant if all three are apps of one tenant."""
USERS = 2
_RUNS_PER_S = 1.8
"""Runs per second of each tenant."""
_AT_ONCE = 20
"""Number of runs of each tenant that start together at the beginning."""
_PROMPTS = (400, 600, 800, 1000)
"""Mean prompt tokens of the stages."""
_OUTPUT = 100

Useful = Mapping[str, float]
"""Useful tokens by full call id; other calls have as many as they use."""


def honest_runs(tenant: str, seed: int, duration_s: float) -> list[Interaction]:
    """Return the work of one tenant, in the order of arrival."""
    rng = random.Random(f"{tenant} {seed}")  # noqa: S311  a workload is no secret
    number = _AT_ONCE + int(_RUNS_PER_S * duration_s)
    runs = []
    for place in range(number):
        calls: list[TraceCall] = []
        for stage, prompt in enumerate(_PROMPTS):
            before = (calls[-1].call_id,) if calls else ()
            tokens = max(16, round(prompt * rng.lognormvariate(-0.08, 0.4)))
            output = max(2, round(_OUTPUT * rng.lognormvariate(-0.08, 0.4)))
            calls.append(TraceCall(f"c{stage}", "agent", before, 0.0, tokens, 0, output))
        arrival_s = max(0, place - _AT_ONCE) / _RUNS_PER_S
        name, user = f"{tenant}-{place}", f"{tenant}-u{place % USERS}"
        runs.append(Interaction(name, tenant, tenant, user, arrival_s, tuple(calls)))
    return runs


def contest(cheats: Sequence[Interaction], seed: int, duration_s: float) -> Trace:
    """Return the cheat's runs together with those of the honest tenants."""
    runs = [run for tenant in TENANTS[1:] for run in honest_runs(tenant, seed, duration_s)]
    return Trace("contest", 16, ()).with_interactions([*cheats, *runs])


def siblings(trace: Trace) -> Trace:
    """Return the same contest between three apps of one tenant."""
    return trace.with_interactions([replace(run, tenant=ONE_TENANT) for run in trace.interactions])


def _party(owner: Call | RunEnd) -> str:
    return owner.app if owner.tenant == ONE_TENANT else owner.tenant


class UsefulWork:
    """Observes the completed work of each tenant, or of each app if they are apps of one tenant."""

    def __init__(
        self,
        useful: Useful,
        duration_s: float,
        true: Mapping[str, AppProfile],
        *,
        leaves: bool = False,
    ) -> None:
        """``true`` are the profiles of the calls that each app sends.

        ``leaves``: the cheat's calls are cancelled when their work is done.
        """
        self._useful, self._duration_s, self._leaves = useful, duration_s, leaves
        self._true = true
        self._slices = dict.fromkeys(TENANTS, 0.0)
        self._done = ServiceWindows(TENANTS, duration_s, WINDOW_S)
        self._ended = ServiceWindows(TENANTS, duration_s, WINDOW_S)

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """Record the work and service of an ended call."""
        party = _party(call)
        left = self._leaves and party == CHEAT and sample.end_s < self._duration_s
        if sample.outcome == "completed" or (left and sample.outcome == "cancelled"):
            used = sample.usage.prompt_tokens + sample.usage.output_tokens
            self._done.add(party, sample.end_s, self._useful.get(call.call_id, used))
        self._slices[party] += typical_calls(sample.usage, self._true[call.app], call.stage)

    def run_ended(self, end: RunEnd, opened_s: float, ended_s: float) -> None:
        """Count an ended run."""
        self._ended.add(_party(end), ended_s, 1)

    def figures(self, result: ReplayResult) -> Mapping[str, Any]:
        """Return useful tokens per second of each tenant by window, and the cheat's runs ended by then.

        ``slices``: the total service of each tenant in true typical calls.
        """
        return {
            "done_per_s": self._done.per_s(),
            "ended_runs": list(accumulate(self._ended.totals(CHEAT))),
            "slices": self._slices,
        }


class LeavingReplay(Replay):
    """Replay in which the cheat cancels every call after its last token."""

    def _end_call(self, live: Any, outcome: CallOutcome, output_tokens: int) -> None:
        left = live.call.tenant == CHEAT and outcome == "completed"
        super()._end_call(live, "cancelled" if left else outcome, output_tokens)
