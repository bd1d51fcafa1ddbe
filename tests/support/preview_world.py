"""A history with known parameters: a trace served by simulated workers, recorded and in rows."""

from __future__ import annotations

import random

from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.platform.reporting.traffic.lines import EndedCall
from fairserve.platform.reporting.traffic.segments import SegmentWriter
from fairserve.platform.tuning.preview.input import (
    PreviewJob,
    PreviewWorkers,
    RejectedCall,
    ServedCall,
)
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

EPOCH = 1_700_000_000.0
"""Zero of the trace's time."""
LEAD_S = 60.0
MODEL = "m"
BLOCK = 16
TRUTH = CostModel(
    "truth",
    kv_capacity_tokens=8_000,
    prefill_base_s=0.03,
    prefill_s_per_token=0.0004,
    prefill_s_per_pair=0.0,
    decode_base_s=0.02,
    decode_s_per_sequence=0.001,
    decode_s_per_held_token=0.0,
    max_prefill_tokens=512,
    max_running=16,
    loop="mixed",
)


def traffic(runs, *, users=8, seconds=300.0, seed=1, most_calls=4):
    """Return runs of one app, chains of one to four calls; user 0 makes half of them."""
    rng = random.Random(seed)
    made, fresh = [], 1000
    for number in range(runs):
        user = 0 if rng.random() < 0.5 else rng.randrange(1, users)
        calls, blocks = [], [(1, 4)]  # all share a system prompt of four blocks
        for place in range(rng.randint(1, most_calls)):
            count = rng.randint(2, 12)
            blocks = [*blocks, (fresh, count)]
            fresh += count
            deps = (str(place),) if place else ()
            prompt = BLOCK * sum(count for _, count in blocks) + rng.randrange(BLOCK)
            output = rng.randint(10, 80)
            gap = rng.random() if place else 0.0
            call = TraceCall(
                str(place + 1), "default", deps, gap, prompt - 64, 64, output, blocks=tuple(blocks)
            )
            calls.append(call)
        at = rng.random() * seconds
        made.append(Interaction(f"run-{number}", "t", "app", f"u{user}", at, tuple(calls)))
    return Trace("made", BLOCK, ()).with_interactions(made)


class History:
    """Records that a server would have of a trace served by workers of given costs."""

    def __init__(
        self,
        folder,
        trace,
        *,
        system="fairserve",
        costs=TRUTH,
        workers=1,
        limits=None,
        retries=0,
        way_s=0.0,
    ):
        self.folder, self.trace = folder, trace
        self.served, self.refused, self._ended = [], [], []
        self._workers, self._costs = workers, costs
        profile = AppProfile((StageProfile(120.0, 64.0, 45.0),), calls_per_interaction=2.5)
        self.settings = [AppChanged("app", profile, limits or Limits())]
        self.system = SYSTEMS[system] if isinstance(system, str) else system
        self._opened = {run.interaction_id: run.arrival_s for run in trace.interactions}
        self._again_s = {}
        options = ReplayOptions(
            workers=workers, settings=self.settings, retries=retries, dispatch_delay_s=way_s
        )
        self.result = Replay(trace, self.system, costs, options, self).run()
        SegmentWriter(
            folder, max_bytes=1 << 28, retention_s=1e9, block_tokens=BLOCK, wall=lambda: EPOCH
        ).write(self._ended)

    def call_ended(self, call, sample, worker, refusal):
        who = (call.tenant, call.app, call.user)
        if refusal is not None:
            reason, mid_run = refusal.decision.reason, refusal.mid_run
            at = EPOCH + sample.end_s
            self._again_s[call.call_id] = sample.end_s + refusal.decision.retry_after_s
            row = (*who, MODEL, call.interaction_id)
            self.refused.append(RejectedCall(*row, at, reason, mid_run))
            return
        asked_s = self._again_s.get(call.call_id, sample.arrival_s)
        at = EPOCH + asked_s
        delay_s = sample.queue_delay_s
        first_s = sample.first_token_s
        self.served.append(
            ServedCall(
                call.call_id,
                *who,
                MODEL,
                call.interaction_id,
                call.stage,
                sample.outcome,
                at,
                sample.usage.input_tokens,
                sample.usage.system_tokens,
                sample.usage.cached_tokens,
                sample.usage.output_tokens,
                None if delay_s is None else delay_s - (asked_s - sample.arrival_s),
                None if first_s is None else first_s - asked_s,
                sample.end_s - asked_s,
            )
        )
        self._ended.append(
            EndedCall(
                call.interaction_id,
                EPOCH + self._opened[call.interaction_id],
                call.call_id,
                call.call_id,
                tuple(call.parents or ()),
                call.stage,
                *who,
                None,
                at,
                EPOCH + sample.end_s,
                sample.usage.prompt_tokens,
                sample.usage.system_tokens,
                sample.usage.output_tokens,
                call.samples,
                call.block_keys,
            )
        )

    def run_ended(self, end, opened_s, ended_s):
        pass

    @property
    def workers(self):
        costs = self._costs
        return PreviewWorkers(
            MODEL,
            self._workers,
            costs.kv_capacity_tokens,
            costs.max_running,
            costs.max_prefill_tokens,
        )

    def job(self, proposed, *, seconds=400.0, **more):
        """Return a preview of the whole history."""
        values = {
            "recording": self.folder,
            "lead_at": EPOCH - LEAD_S,
            "from_at": EPOCH,
            "until_at": EPOCH + seconds,
            "workers": self.workers,
            "served": self.served,
            "refused": self.refused,
            "settings": self.settings,
            "current": self.system,
            "proposed": proposed,
            "max_calls": 5000,
        }
        return PreviewJob(**{**values, **more})
