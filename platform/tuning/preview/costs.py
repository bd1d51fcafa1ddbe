"""Costs of the current workers: a named cost model of the simulator, slowed down by one factor.

The factor is the one with which a replay of the recorded traffic has the measured median time from a
call's start to its end. That time holds no wait, but it grows with the batch, so the factor is not a
quotient of medians: it is corrected after each of at most five replays, the first one on workers that
are fast enough to be idle.

Weakness: the proportions between passes, prompts and decode steps are the named model's. Workers with
slower prompts have a longer time to first token than the replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.platform.tuning.preview.input import PreviewWorkers, ServedCall
from fairserve.scheduling.system import SystemConfig

NAMED = "a10g-llama2-7b"
"""The named cost model that was fitted to measurements; the others follow data sheets."""
IDLE_FACTOR = 0.01
REPLAYS = 5
CLOSE = 0.05
"""Relative difference of the medians that ends the corrections."""
MOST_WAY_S = 0.25


@dataclass(frozen=True, slots=True)
class Costs:
    """A cost model with its source."""

    model: CostModel
    source: str
    """``scaled``, or ``assumed`` if no call has its times."""
    calls: int
    """Number of calls of the median."""
    factor: float
    """Factor on all times of the named model."""


def costs_of(
    served: Iterable[ServedCall],
    workers: PreviewWorkers,
    trace: Trace,
    system: SystemConfig,
    options: ReplayOptions,
) -> Costs:
    """Return the costs with which ``trace`` takes as long as the calls took that were served."""
    named = replace(
        COST_MODELS[NAMED],
        kv_capacity_tokens=workers.kv_capacity_tokens,
        max_prefill_tokens=workers.max_pass_tokens,
        max_running=workers.max_running,
        loop="mixed",
    )
    times = [
        row.duration_s - row.queue_s
        for row in served
        if row.outcome == "completed"
        and row.queue_s is not None
        and row.duration_s is not None
        and row.duration_s > row.queue_s >= 0
    ]
    if not times:
        return Costs(named, "assumed", 0, 1.0)
    measured_s = median(times)
    tried: dict[float, float] = {}
    factor = IDLE_FACTOR
    for _ in range(REPLAYS):
        took_s = _service_s(Replay(trace, system, slower(named, factor), options))
        if took_s is None:
            break
        ratio = took_s / measured_s
        tried[factor] = abs(math.log(ratio))
        if abs(ratio - 1) <= CLOSE:
            break
        # Near saturation the time grows faster than the factor: half a step does not overshoot.
        factor /= ratio if len(tried) == 1 else math.sqrt(ratio)
    if not tried:
        return Costs(named, "assumed", 0, 1.0)
    factor = min(tried, key=lambda each: (tried[each], each))
    return Costs(slower(named, factor), "scaled", len(times), factor)


def _service_s(replay: Replay) -> float | None:
    """Return the median time from start to end of the completed calls."""
    times = [
        call.end_s - call.arrival_s - call.queue_delay_s
        for call in replay.run().calls
        if call.outcome == "completed" and call.queue_delay_s is not None
    ]
    return median(times) if times else None


def slower(costs: CostModel, factor: float) -> CostModel:
    """Return the model with all passes slowed down by a factor."""
    times = {
        name: getattr(costs, name) * factor
        for name in (
            "prefill_base_s",
            "prefill_s_per_token",
            "prefill_s_per_pair",
            "decode_base_s",
            "decode_s_per_sequence",
            "decode_s_per_held_token",
        )
    }
    return replace(costs, **times)


def way_of(served: Sequence[ServedCall]) -> float:
    """Return the seconds from a grant to its worker: the wait of the least delayed twentieth."""
    waits = [row.queue_s for row in served if row.queue_s is not None and row.queue_s >= 0]
    least_s = quantiles(waits, n=20, method="inclusive")[0] if len(waits) > 1 else sum(waits)
    return min(least_s, MOST_WAY_S)
