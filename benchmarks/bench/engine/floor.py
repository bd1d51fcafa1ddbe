"""Lower bounds of the device: a decode step moves bytes, a prefill multiplies matrices.

A decode step reads every weight that it multiplies by, and the keys and values of every token in
the batch, once; the floor is these bytes over the rate at which the device copies memory. A prefill
multiplies each token by these weights, and attends; its rate is compared with a large linear layer.
Both bounds are measured in the same run. On a CPU the caches and the number of cores blur them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fairserve.benchmarks.bench.engine.breakdown import full_decodes, full_prefills
from fairserve.engine.torch.bench.runner import TimedStep


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model that determine its bounds."""

    parameters: int
    """Number of all parameters."""
    layer_parameters: int
    """Number of parameters by which every token is multiplied."""
    output_parameters: int
    """Number of parameters by which a sequence's last token is multiplied."""
    bytes_per_parameter: int
    kv_bytes_per_token: int
    pair_flops: float
    """FLOPs of one token attending to another, over all layers."""

    @property
    def decode_weight_bytes(self) -> int:
        """Return the bytes of weights that a decode step reads; the input embedding is negligible."""
        return (self.layer_parameters + self.output_parameters) * self.bytes_per_parameter


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Measured bounds."""

    copy_bytes_per_s: float
    """Read and written bytes per second together."""
    matrix_flops_per_s: float


def decode_floor_s(sizes: ModelSizes, rates: DeviceRates, held_tokens: int) -> float:
    """Return the minimum time of a decode step of a batch that holds this many tokens."""
    moved = sizes.decode_weight_bytes + held_tokens * sizes.kv_bytes_per_token
    return moved / rates.copy_bytes_per_s


def prefill_flops(sizes: ModelSizes, tokens: int, pairs: float) -> float:
    """Return the FLOPs of a prefill without the output layer."""
    return 2 * sizes.layer_parameters * tokens + sizes.pair_flops * pairs


def against_floor(
    sizes: ModelSizes, rates: DeviceRates, steps: Sequence[TimedStep]
) -> dict[str, Any]:
    """Return the bounds, and the distance of the largest decode and prefill steps from them."""
    plain: dict[str, Any] = {
        "copy_gb_per_s": rates.copy_bytes_per_s / 1e9,
        "matrix_tflops_per_s": rates.matrix_flops_per_s / 1e12,
    }
    decodes, prefills = full_decodes(steps), full_prefills(steps)
    if decodes:
        floors_s = [decode_floor_s(sizes, rates, step.load.held_tokens) for step in decodes]
        ratios = [step.total_s / floor for step, floor in zip(decodes, floors_s, strict=True)]
        plain["decode"] = {
            "sequences": decodes[0].load.sequences,
            "held_tokens": median(step.load.held_tokens for step in decodes),
            "step_ms": 1000 * median(step.total_s for step in decodes),
            "floor_ms": 1000 * median(floors_s),
            "over_floor": median(ratios),
        }
    if prefills:
        shares = [
            prefill_flops(sizes, step.load.prefill_tokens, step.load.prefill_pairs)
            / step.total_s
            / rates.matrix_flops_per_s
            for step in prefills
        ]
        plain["prefill"] = {
            "tokens": prefills[0].load.prefill_tokens,
            "tokens_per_s": median(step.load.prefill_tokens / step.total_s for step in prefills),
            "of_matrix_rate": median(shares),
        }
    return plain
