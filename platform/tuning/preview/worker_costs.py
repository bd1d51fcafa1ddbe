"""Cost model of the current workers: a named one, scaled to the calls of some minutes of the ledger.

A call's time from its start to its end, over the time that the named model gives it alone, is the scale;
the median of all calls counts. Replays of recent calls then correct it (:mod:`.job`). The latency to a
worker and back is the wait of the least delayed calls, which found an empty queue.

Weakness: prefill and decode keep the ratio of the named model, and time outside the engine (HTTP, slow
clients) counts as engine time. The replay of the current settings shows the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel
from fairserve.platform.tuning.preview.input import PreviewWorkers, ServedCall

NAMED = "a100-llama3-8b"
MOST_WAY_S = 0.25
WAY_QUANTILE = 0.05
_SCALES = (1e-4, 1e4)


@dataclass(frozen=True, slots=True)
class WorkerCosts:
    """A cost model with its source."""

    model: CostModel
    calls: int
    """Number of calls to which the named model is scaled; 0: it is assumed as it is."""
    way_s: float
    """Seconds from control's grant to the start event."""


def worker_costs(rows: Iterable[ServedCall], workers: PreviewWorkers) -> WorkerCosts:
    """Return the cost model of the workers of these calls."""
    named = replace(
        COST_MODELS[NAMED],
        kv_capacity_tokens=workers.kv_capacity_tokens,
        max_prefill_tokens=workers.max_pass_tokens,
        max_running=workers.max_running,
        loop="mixed",
    )
    waits_s, scales = [], []
    for row in rows:
        if row.outcome != "completed" or row.output_tokens < 1:
            continue
        if row.queue_s is None or row.duration_s is None or not 0 <= row.queue_s < row.duration_s:
            continue
        computed = max(0, row.input_tokens + row.system_tokens - row.cached_tokens)
        alone_s = named.prefill_s(computed, 0.0) + named.decode_s(
            1, computed, row.output_tokens - 1
        )
        waits_s.append(row.queue_s)
        scales.append((row.duration_s - row.queue_s) / alone_s)
    if not scales:
        return WorkerCosts(named, 0, 0.0)
    way_s = min(float(np.quantile(waits_s, WAY_QUANTILE)), MOST_WAY_S)
    scale = min(max(median(scales), _SCALES[0]), _SCALES[1])
    return WorkerCosts(slower(named, scale), len(scales), way_s)


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
