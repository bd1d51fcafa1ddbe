"""Child process of a preview: reads its job from standard input, replays twice, writes the figures.

``python -m fairserve.platform.tuning.preview.job``. The job is pickled by the server that started this
process, its only source. The output is JSON: the fields of ``PreviewOut``, or ``nothing`` with the
reason if there is nothing to replay. The same job, recording and salt produce the same bytes.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.interactions.call import Call
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.platform.reporting.traffic.lines import Pseudonyms
from fairserve.platform.reporting.traffic.segments import load_salt, read_recording
from fairserve.platform.tuning.preview.demand import NO_DEMAND, PreviewDemand, demand_of, newest
from fairserve.platform.tuning.preview.input import PreviewJob
from fairserve.platform.tuning.preview.words import left_out_sentences, sentences, trust
from fairserve.platform.tuning.preview.worker_costs import WorkerCosts, slower, worker_costs
from fairserve.scheduling.directory import Setting
from fairserve.scheduling.events import AppChanged, Refuse
from fairserve.scheduling.metrics import CallSample, distribution, summarise
from fairserve.scheduling.system import SystemConfig

NICENESS = 10
MOST_USERS = 20
"""Maximum number of users in the output."""

CALIBRATION_CALLS = 1000
"""Number of recent calls for the calibration of the speed of passes."""
CALIBRATION_REPLAYS = 4
CLOSE = 0.1
MOST_FACTOR = 4.0
"""Maximum correction of the scale of single calls."""

Figures = dict[str, Any]
PerUser = dict[tuple[str, str], list[int]]
"""Numbers of rejected and served calls by tenant and user."""


def main() -> int:
    """Read a job, replay it, write the figures."""
    os.nice(NICENESS)
    job = pickle.load(sys.stdin.buffer)  # noqa: S301  see above
    sys.stdout.buffer.write(orjson.dumps(preview(job), option=orjson.OPT_SORT_KEYS))
    return 0


def preview(job: PreviewJob) -> Figures:
    """Return the figures of a job."""
    recorded, block_tokens, damaged = read_recording(job.recording, job.lead_at)
    if not recorded:
        return {"nothing": "the recording has no call of the last minutes"}
    demand = demand_of(
        recorded,
        block_tokens,
        job.served,
        job.refused,
        Pseudonyms(load_salt(job.recording)),
        model=job.workers.model,
        kv_capacity_tokens=job.workers.kv_capacity_tokens,
        lead_at=job.lead_at,
        from_at=job.from_at,
        until_at=job.until_at,
        max_calls=job.max_calls,
        seed=job.seed,
    )
    del recorded
    lead_s = demand.from_at - job.lead_at
    seen = [run for run in demand.trace.interactions if run.arrival_s >= lead_s]
    if not seen:
        return {"nothing": "the recording has no complete run that began in the last minutes"}
    found = worker_costs((row for row in job.served if row.model == job.workers.model), job.workers)
    options = ReplayOptions(
        workers=job.workers.number,
        seed=job.seed,
        dispatch_delay_s=found.way_s,
        retries=demand.retries,
        settings=_without_expiry(job.settings, demand),
    )
    factor = _factor(job, demand, found.model, options)
    costs = slower(found.model, factor)
    current, users_before = _replayed(demand, job.current, costs, options, lead_s)
    proposed, users_after = _replayed(demand, job.proposed, costs, options, lead_s)
    fidelity = _fidelity(job, demand.from_at, current)
    affected = _affected(users_before, users_after)
    estimated = [run for run in seen if run.interaction_id in demand.drawn]
    return {
        "window": {
            "from": _iso(demand.from_at),
            "until": _iso(job.until_at),
            "cut": job.cut or demand.cut,
            "runs": len(seen),
            "calls": sum(len(run.calls) for run in seen),
            "users": len({(run.tenant, run.user) for run in seen}),
            "estimated_runs": len(estimated),
            "estimated_calls": sum(len(run.calls) for run in estimated),
            "came_earlier_runs": demand.came_earlier,
            "retries": demand.retries,
        },
        "workers": _workers(job, replace(found, model=costs), factor),
        "left_out": left_out_sentences(demand.left_out, damaged, job.notes),
        "current": current,
        "proposed": proposed,
        "users": affected[:MOST_USERS],
        "users_changed": len(affected),
        "fidelity": fidelity,
        "sentences": sentences(current, proposed, affected, fidelity, len(estimated)),
    }


class _Watcher:
    """Counts rejections by reason, and calls by user. A retry is a new arrival, as in the ledger, in
    the same run.
    """

    def __init__(self, lead_s: float) -> None:
        self._lead_s = lead_s
        self.reasons: Counter[str] = Counter()
        self.users: PerUser = {}
        self.calls: list[CallSample] = []
        self._again_s: dict[str, float] = {}
        """Times of the retries of rejected calls."""

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """See :class:`~fairserve.engine.simulated.replay_watcher.ReplayWatcher`."""
        again_s = self._again_s.pop(call.call_id, sample.arrival_s)
        if refusal is not None:
            self._again_s[call.call_id] = sample.end_s + (refusal.decision.retry_after_s or 1.0)
        waited_s = again_s - sample.arrival_s
        delay_s = sample.queue_delay_s
        if waited_s > 0:
            delay_s = None if delay_s is None else delay_s - waited_s
            sample = replace(sample, arrival_s=again_s, queue_delay_s=delay_s)
        if sample.arrival_s < self._lead_s:
            return
        self.calls.append(sample)
        counts = self.users.setdefault((call.tenant, call.user), [0, 0])
        if refusal is not None:
            self.reasons[refusal.decision.reason] += 1
            counts[0] += 1
        elif sample.outcome == "completed":
            counts[1] += 1

    def run_ended(self, end: RunEnd, opened_s: float, ended_s: float) -> None:
        """Ignore the end of a run."""


def _replayed(
    demand: PreviewDemand,
    system: SystemConfig,
    costs: CostModel,
    options: ReplayOptions,
    lead_s: float,
) -> tuple[Figures, PerUser]:
    watcher = _Watcher(lead_s)
    result = Replay(demand.trace, system, costs, options, watcher).run()
    runs = [run for run in result.runs if run.start_s >= lead_s]
    found = summarise(watcher.calls, runs)
    figures = {
        "refused_calls": found["refused_calls"],
        "refused_by_reason": dict(sorted(watcher.reasons.items())),
        "refused_mid_run": found["refused_mid_run"],
        "queue_delay_s": found["queue_delay_s"],
        "ttft_s": found["ttft_s"],
        "interaction_latency_s": found["interaction_latency_s"],
        "jain_index": found["jain_index"],
        "completed_interactions": found["completed_interactions"],
        "aborted_interactions": found["aborted_interactions"],
        "wasted_tokens": sum(found["wasted_tokens"].values()),
        "prefix_hit_rate": found["prefix_hit_rate"],
        "throughput_tokens_per_s": found["throughput_tokens_per_s"]["total"],
        "busy_share": result.busy_share,
    }
    return figures, watcher.users


def _factor(
    job: PreviewJob, demand: PreviewDemand, costs: CostModel, options: ReplayOptions
) -> float:
    """Return the slow-down of passes with which the mean duration of calls is as measured.

    Near saturation, small errors of the costs cause large errors of the delays, which this corrects. It
    replays recent calls with the current settings.
    """
    part = replace(demand, trace=newest(demand.trace, CALIBRATION_CALLS))
    begin_s = part.trace.interactions[0].arrival_s
    target = _mean(
        row.duration_s
        for row in job.served
        if row.model == job.workers.model
        and row.outcome == "completed"
        and row.duration_s is not None
        and row.at >= job.lead_at + begin_s
    )
    if not target:
        return 1.0
    tried: dict[float, float] = {}
    low, high, factor = 1 / MOST_FACTOR, MOST_FACTOR, 1.0
    for _ in range(CALIBRATION_REPLAYS):
        watcher = _Watcher(begin_s)
        Replay(part.trace, job.current, slower(costs, factor), options, watcher).run()
        took = [c.end_s - c.arrival_s for c in watcher.calls if c.outcome == "completed"]
        ratio = _mean(took) / target
        if not ratio:
            return 1.0
        tried[factor] = abs(math.log(ratio))
        if abs(ratio - 1) <= CLOSE:
            break
        low, high = (factor, high) if ratio < 1 else (low, factor)
        factor = math.sqrt(low * high)
    return min(tried, key=lambda each: (tried[each], each))


def _mean(values: Iterable[float]) -> float:
    """Return the mean with the highest 1 % clipped to the next value; 0 without values."""
    x = np.asarray(list(values), dtype=np.float64)
    return float(np.minimum(x, np.quantile(x, 0.99)).mean()) if len(x) else 0.0


def _without_expiry(settings: Sequence[Setting], demand: PreviewDemand) -> list[Setting]:
    """Return settings with which no run expires in a gap: expired runs are recorded as new runs."""
    needed = profiles_of(demand.trace)
    found: list[Setting] = []
    for each in settings:
        if isinstance(each, AppChanged) and each.app in needed:
            least_s = needed[each.app].idle_timeout_s
            idle_s = max(each.profile.idle_timeout_s, least_s)
            each = replace(each, profile=replace(each.profile, idle_timeout_s=idle_s))
        found.append(each)
    return found


def _fidelity(job: PreviewJob, from_at: float, current: Figures) -> Figures:
    """Return the measured figures beside those of the replay of the current settings."""
    model = job.workers.model
    own = [row for row in job.served if row.model == model and row.at >= from_at]
    refused = [
        row
        for row in job.refused
        if row.model == model and row.at >= from_at and row.reason not in NO_DEMAND
    ]
    delays = distribution(row.queue_s for row in own if row.queue_s is not None)
    first = distribution(row.ttft_s for row in own if row.ttft_s is not None)
    pairs = {
        "refused_calls": (len(refused), current["refused_calls"]),
        "queue_delay_p50_s": (delays["p50"], current["queue_delay_s"]["p50"]),
        "queue_delay_p99_s": (delays["p99"], current["queue_delay_s"]["p99"]),
        "ttft_p99_s": (first["p99"], current["ttft_s"]["p99"]),
    }
    calls = len(own) + len(refused)
    figures: Figures = {
        name: {"measured": measured, "simulated": simulated}
        for name, (measured, simulated) in pairs.items()
    }
    return {**figures, "trust": trust(figures, calls)}


def _affected(before: PerUser, after: PerUser) -> list[Figures]:
    """Return the users with changed numbers of rejected or served calls, largest change first."""
    found = []
    for tenant, user in sorted(before.keys() | after.keys()):
        was, will = before.get((tenant, user), [0, 0]), after.get((tenant, user), [0, 0])
        if was != will:
            found.append(
                {
                    "tenant": tenant,
                    "user": user,
                    "refused": {"current": was[0], "proposed": will[0]},
                    "served": {"current": was[1], "proposed": will[1]},
                }
            )
    return sorted(found, key=lambda each: -_change(each))


def _change(user: Figures) -> int:
    return sum(
        abs(user[name]["proposed"] - user[name]["current"]) for name in ("refused", "served")
    )


def _workers(job: PreviewJob, found: WorkerCosts, factor: float) -> Figures:
    costs = found.model
    return {
        "model": job.workers.model,
        "number": job.workers.number,
        "kv_capacity_tokens": job.workers.kv_capacity_tokens,
        "costs": {
            "source": "scaled" if found.calls else "assumed",
            "calls": found.calls,
            "way_s": found.way_s,
            "factor": factor,
            "pass_s": costs.prefill_base_s,
            "prompt_token_s": costs.prefill_s_per_token,
            "step_s": costs.decode_base_s,
            "sequence_s": costs.decode_s_per_sequence,
        },
    }


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
