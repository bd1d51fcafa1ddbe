"""Fits a cost model to measured passes: least squares of relative errors, coefficients >= 0.

Every pass is one equation of the cost model (engine/simulated/cost_model.py), divided by its time,
so that a decode step of a few milliseconds counts as much as a prefill of a second. By default all
terms are linear, and passes with a prefill have a different base from the others. With ``knots`` a
curve over the tokens of a pass, whose value at each knot is fitted, replaces the bases and the time
per prompt token. Weakness: influences other than these counts are ignored, such as unequal lengths
in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from fairserve.engine.simulated.cost_model import CostModel, Loop

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """Measurement of one forward pass, including its whole step."""

    took_s: float
    prefill_tokens: int
    prefill_pairs: float
    sequences: int
    """Number of decoding sequences."""
    held_tokens: int
    """Tokens held by these sequences, new ones included."""


@dataclass(frozen=True, slots=True)
class PassFit:
    """A fitted model, and its errors on the passes."""

    costs: CostModel
    residuals: tuple[float, ...]
    """Relative error of each pass: modelled time over measured time, less 1."""

    @property
    def median_residual(self) -> float:
        """Return the median of the absolute relative errors."""
        return median(abs(residual) for residual in self.residuals)

    @property
    def worst_residual(self) -> float:
        """Return the largest absolute relative error."""
        return max(abs(residual) for residual in self.residuals)


def fit(
    name: str,
    passes: Sequence[MeasuredPass],
    *,
    kv_capacity_tokens: int,
    max_prefill_tokens: int,
    max_running: int,
    knots: Sequence[int] = (),
    loop: Loop = "mixed",
    origin: str = "",
) -> PassFit:
    """Return the cost model that fits these passes best.

    ``knots``: at least two token counts, ascending. Raises ValueError unless there are passes that
    prefill and passes that only decode. Needs scipy: ``pip install 'fairserve[bench]'``.
    """
    from scipy.optimize import nnls

    prefills = sum(1 for each in passes if each.prefill_tokens)
    if not prefills or prefills == len(passes):
        raise ValueError("a fit needs passes that prefill, and passes that only decode")
    times = np.array([each.took_s for each in passes])
    bases = np.array([_weights(each, knots) if knots else _linear(each) for each in passes])
    others = np.array([(each.prefill_pairs, each.sequences, each.held_tokens) for each in passes])
    rows = np.hstack([bases, others]) / times[:, None]
    # Columns are scaled to one length, since tokens and pairs differ by powers of ten.
    lengths = np.linalg.norm(rows, axis=0)
    lengths[lengths == 0] = 1.0
    solution = nnls(rows / lengths, np.ones(len(passes)))[0] / lengths
    first, (per_pair, per_sequence, per_held) = solution[:-3].tolist(), solution[-3:].tolist()
    prefill_base, per_token, decode_base = (0.0, 0.0, 0.0) if knots else first
    costs = CostModel(
        name,
        kv_capacity_tokens=kv_capacity_tokens,
        prefill_base_s=prefill_base,
        prefill_s_per_token=per_token,
        prefill_s_per_pair=per_pair,
        decode_base_s=decode_base,
        decode_s_per_sequence=per_sequence,
        decode_s_per_held_token=per_held,
        max_prefill_tokens=max_prefill_tokens,
        max_running=max_running,
        loop=loop,
        pass_curve=tuple(zip(knots, first, strict=True)) if knots else (),
        origin=origin,
    )
    return PassFit(costs, tuple((rows @ solution - 1).tolist()))


def knots_of(passes: Sequence[MeasuredPass]) -> list[int]:
    """Return sizes of measured passes, each at least twice the previous one, and the largest."""
    sizes = sorted({each.prefill_tokens + each.sequences for each in passes})
    knots = [sizes[0]]
    for size in sizes:
        if size >= 2 * knots[-1]:
            knots.append(size)
    if sizes[-1] > knots[-1]:
        knots.append(sizes[-1])
    return knots


def _linear(each: MeasuredPass) -> tuple[float, ...]:
    prefills = each.prefill_tokens > 0
    return float(prefills), each.prefill_tokens, float(not prefills)


def _weights(each: MeasuredPass, knots: Sequence[int]) -> Array:
    """Return the weight of each knot's value in a pass."""
    tokens = each.prefill_tokens + each.sequences
    weights = np.zeros(len(knots))
    at = min(max(1, int(np.searchsorted(knots, tokens))), len(knots) - 1)
    share = max(0.0, (tokens - knots[at - 1]) / (knots[at] - knots[at - 1]))
    weights[at - 1], weights[at] = 1 - share, share
    return weights
