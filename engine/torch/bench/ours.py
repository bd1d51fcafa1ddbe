"""This engine as run by a benchmark: with the default local scheduler of a worker.

The caller steps the engine, as its thread does in a worker.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np

from fairserve.engine.torch.bench.observed_engine import ObservedEngine
from fairserve.engine.torch.bench.runner import (
    RunnerLimits,
    RunnerOutcome,
    RunnerRequest,
    TimedStep,
)
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.events import EngineEvent, Failed, Generated
from fairserve.engine.torch.model_loader import LoadedModel
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import SequenceRequest
from fairserve.scheduling.registry import LOCAL_SCHEDULERS

LOCAL_SCHEDULER = "dlpm"
_numbers = itertools.count()


class OurEngine:
    """Runner of one engine, whose cache persists between runs."""

    name = "fairserve"

    def __init__(self, loaded: LoadedModel, limits: RunnerLimits) -> None:
        options = EngineOptions(
            kv_tokens=limits.kv_tokens,
            max_batch=limits.max_batch,
            token_budget=limits.token_budget,
        )
        scheduler = LOCAL_SCHEDULERS[LOCAL_SCHEDULER]()
        self.engine = ObservedEngine(loaded, scheduler, options, self._hear)
        self._first_s: dict[str, float] = {}
        """Time of each sequence's first token."""

    def run(self, requests: Sequence[RunnerRequest]) -> RunnerOutcome:
        """Run all requests; see :class:`~.runner.Runner`."""
        return self.run_at(requests, [0.0] * len(requests))

    def run_at(
        self, requests: Sequence[RunnerRequest], arrivals_s: Sequence[float]
    ) -> RunnerOutcome:
        """Run requests that arrive at these times, in order; first tokens count from the arrival."""
        engine = self.engine
        waiting = [_sequence_request(request) for request in requests]
        begin_s = time.perf_counter()
        added = 0
        while added < len(waiting) or engine.has_work:
            now_s = time.perf_counter() - begin_s
            while added < len(waiting) and arrivals_s[added] <= now_s:
                engine.add(waiting[added])
                added += 1
            if not engine.step() and added < len(waiting):
                time.sleep(max(0.0, arrivals_s[added] - (time.perf_counter() - begin_s)))
        wall_s = time.perf_counter() - begin_s
        names = [request.sequence_id for request in waiting]
        first_s = tuple(
            self._first_s.pop(name) - begin_s - at_s
            for name, at_s in zip(names, arrivals_s, strict=True)
        )
        return RunnerOutcome(wall_s, first_s, tuple(engine.outputs.pop(name) for name in names))

    def record(self, requests: Sequence[RunnerRequest]) -> list[TimedStep]:
        """Run requests; return each step with its times."""
        self.engine.recording = True
        try:
            self.run(requests)
        finally:
            self.engine.recording = False
        steps, self.engine.steps = self.engine.steps, []
        return steps

    def close(self) -> None:
        """Release the memory."""
        del self.engine

    def _hear(self, events: list[EngineEvent]) -> None:
        now_s = time.perf_counter()
        for event in events:
            if isinstance(event, Failed):
                raise RuntimeError(f"{event.sequence_id}: {event.message}")
            if isinstance(event, Generated):
                self._first_s.setdefault(event.sequence_id, now_s)


def _sequence_request(request: RunnerRequest) -> SequenceRequest:
    return SequenceRequest(
        sequence_id=f"bench-{next(_numbers)}",
        client_id="bench",
        token_ids=np.array(request.prompt, dtype=np.uint32),
        params=SamplingParams(max_tokens=request.output_tokens, temperature=0.0, ignore_eos=True),
    )
