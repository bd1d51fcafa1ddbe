"""Cost model of the current workers, fitted to some minutes of the ledger's calls.

Each completed call yields two equations, linear in four times. From its start to its first token a
worker makes a pass over the prompt; from there to its end it makes a decode step per further token,
slowed down by prompts of other calls:

    first - start = pass + token * (own computed tokens + those of others) + sequence * b
    end - first   = (steps - n) * step + n * pass + token * (tokens of others) + sequence * steps * b

with ``n`` prompts of other calls started in that time and ``b`` decoding calls on average. A call that
was not streamed has no time of its first token: it yields the sum of both equations, in which its prompt
is assumed to have taken as long as one step. The times are
fitted by non-negative least squares of relative errors; outliers have a lower weight (Huber).

The latency to a worker and back is the wait of the least delayed calls, which found an empty queue.

Weakness: time outside the engine (HTTP, slow clients) counts as engine time; lengths of contexts and
samples are not distinguished. The replay of the current settings shows the accuracy of the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt

from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel
from fairserve.platform.tuning.preview.input import PreviewWorkers, ServedCall

FALLBACK = "a100-llama3-8b"
MIN_CALLS = 20
"""Minimum number of calls for a fit."""
LEAST_STEP_S = 1e-5
MOST_WAY_S = 0.25
WAY_QUANTILE = 0.05
_HUBER = 1.345
_ROUNDS = 8
_SCALES = (1e-4, 1e4)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model with its source."""

    costs: CostModel
    source: str
    """``fitted``, ``scaled``, or ``assumed``."""
    calls: int
    """Number of calls that the model was fitted to."""
    way_s: float
    """Seconds from control's grant to the start event."""
    typical_error: float | None
    """Median of the relative errors of the modelled times."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call at one worker. Times are epoch seconds."""

    waited_s: float
    start: float
    first: float
    end: float
    computed: int
    steps: int
    streamed: bool
    """False: ``first`` is a guess."""


def fit_costs(rows: Iterable[ServedCall], workers: PreviewWorkers) -> Fit:
    """Return the workers' cost model: fitted, or a named one, which few calls suffice to scale."""
    by_worker: dict[str, list[_Call]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.at, row.tenant, row.app, row.run, row.stage)):
        call = _timed(row)
        if call is not None:
            by_worker[row.worker or ""].append(call)
    calls = [call for own in by_worker.values() for call in own]
    way_s = _way(calls)
    if len(calls) < MIN_CALLS:
        return _scaled(calls, workers, way_s)
    equations = [_equations(own) for own in by_worker.values()]
    rows_, times = (np.concatenate(part) for part in zip(*equations, strict=True))
    found, error = _solve(rows_, times)
    pass_s, token_s, step_s, sequence_s = found.tolist()
    costs = CostModel(
        "fitted",
        kv_capacity_tokens=workers.kv_capacity_tokens,
        prefill_base_s=pass_s,
        prefill_s_per_token=token_s,
        prefill_s_per_pair=0.0,
        decode_base_s=max(step_s, LEAST_STEP_S),
        decode_s_per_sequence=sequence_s,
        decode_s_per_held_token=0.0,
        max_prefill_tokens=workers.max_pass_tokens,
        max_running=workers.max_running,
        loop="mixed",
    )
    return Fit(costs, "fitted", len(calls), way_s, error)


def _timed(row: ServedCall) -> _Call | None:
    """Return the times of a call; None if one is missing or they are not in order."""
    if row.outcome != "completed" or row.output_tokens < 1:
        return None
    if row.queue_s is None or row.duration_s is None:
        return None
    first_s = row.ttft_s
    if first_s is None:
        first_s = row.queue_s + (row.duration_s - row.queue_s) / (row.output_tokens + 1)
    if not 0 <= row.queue_s < first_s <= row.duration_s:
        return None
    computed = max(0, row.input_tokens + row.system_tokens - row.cached_tokens)
    return _Call(
        row.queue_s,
        row.at + row.queue_s,
        row.at + first_s,
        row.at + row.duration_s,
        computed,
        row.output_tokens - 1,
        row.ttft_s is not None,
    )


def _way(calls: Sequence[_Call]) -> float:
    if not calls:
        return 0.0
    least_s = float(np.quantile([call.waited_s for call in calls], WAY_QUANTILE))
    return min(least_s, MOST_WAY_S)


def _scaled(calls: Sequence[_Call], workers: PreviewWorkers, way_s: float) -> Fit:
    """Return a named model, scaled so that a single call takes as long as measured."""
    named = replace(
        COST_MODELS[FALLBACK],
        kv_capacity_tokens=workers.kv_capacity_tokens,
        max_prefill_tokens=workers.max_pass_tokens,
        max_running=workers.max_running,
        loop="mixed",
    )
    ratios = [
        (call.end - call.start)
        / (named.prefill_s(call.computed, 0.0) + named.decode_s(1, call.computed, call.steps))
        for call in calls
    ]
    if not ratios:
        return Fit(named, "assumed", 0, way_s, None)
    factor = min(max(median(ratios), _SCALES[0]), _SCALES[1])
    errors = [abs(factor / ratio - 1) for ratio in ratios]
    return Fit(slower(named, factor), "scaled", len(calls), way_s, median(errors))


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


def _equations(calls: Sequence[_Call]) -> tuple[Array, Array]:
    """Return the coefficients of the four times for one worker's calls, and the measured times."""
    start, first, end, computed, steps = (
        np.array([getattr(call, name) for call in calls], dtype=np.float64)
        for name in ("start", "first", "end", "computed", "steps")
    )
    zero = start.min()
    start, first, end = start - zero, first - zero, end - zero
    tokens = _Spread(start, first, computed)
    prompts = _Spread(start, first, np.ones_like(computed))
    decoding = _Spread(first, end, end - first)
    took = first - start
    others = np.maximum(0.0, tokens.between(start, first) - computed)
    beside = decoding.between(start, first) / took
    one = np.ones_like(took)
    prefills = np.column_stack([one, computed + others, 0 * one, beside])
    lasts = end - first
    decodes = (steps > 0) & (lasts > 0)
    begun = np.minimum(prompts.between(first, end), steps)
    batch = decoding.between(first, end) / np.maximum(lasts, 1e-9)
    rows = np.column_stack([begun, tokens.between(first, end), steps - begun, steps * batch])
    rows[~decodes] = 0
    streamed = np.array([call.streamed for call in calls])
    whole = ~streamed
    return (
        np.vstack([prefills[streamed], rows[streamed & decodes], prefills[whole] + rows[whole]]),
        np.concatenate([took[streamed], lasts[streamed & decodes], took[whole] + lasts[whole]]),
    )


class _Spread:
    """Amounts, each distributed evenly over an interval."""

    def __init__(self, begin: Array, end: Array, amount: Array) -> None:
        length = np.maximum(end - begin, 1e-9)
        rate = amount / length
        times = np.concatenate([begin, begin + length])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        rates = np.cumsum(np.concatenate([rate, -rate])[order])
        steps = np.diff(self._times) * rates[:-1]
        self._sums = np.concatenate([[0.0], np.cumsum(steps)])

    def between(self, begin: Array, end: Array) -> Array:
        """Return the total amount between two times."""
        upto = np.interp(end, self._times, self._sums)
        found: Array = np.maximum(0.0, upto - np.interp(begin, self._times, self._sums))
        return found


def _solve(rows: Array, times: Array) -> tuple[Array, float]:
    """Return the four non-negative times and the typical relative error."""
    scale = np.maximum(times, 0.2 * float(np.median(times)))
    rows, target = rows / scale[:, None], times / scale
    weights = np.ones(len(times))
    found = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found = _nonnegative(rows * root[:, None], target * root)
        errors = np.abs(rows @ found - target)
        bound = _HUBER * max(float(np.median(errors)) / 0.6745, 1e-9)
        weights = np.minimum(1.0, bound / np.maximum(errors, 1e-12))
    return found, float(np.median(np.abs(rows @ found - target)))


def _nonnegative(rows: Array, target: Array) -> Array:
    """Return the non-negative least squares solution, the best over all sets of zeros."""
    columns = rows.shape[1]
    best, least = np.zeros(columns), float("inf")
    for size in range(1, columns + 1):
        for chosen in combinations(range(columns), size):
            part = rows[:, chosen]
            lengths = np.linalg.norm(part, axis=0)
            if not lengths.all():
                continue
            solution = np.linalg.lstsq(part / lengths, target, rcond=None)[0] / lengths
            if (solution < 0).any():
                continue
            error = float(((part @ solution - target) ** 2).sum())
            if error < least:
                least, best = error, np.zeros(columns)
                best[list(chosen)] = solution
    return best
