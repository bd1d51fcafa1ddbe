"""Times of a forward pass and sizes of an engine: linear models by name or file.

A pass that prefills takes ``base + tokens * per_token + pairs * per_pair``, where a pair is a
computed token and a token that it attends to. A decode step takes
``base + sequences * per_sequence + held tokens * per_held_token``. A pass that does both adds both
to the base of prefills. ``a10g-llama2-7b`` is fitted to the VTC paper's tables (ALGORITHMS section
9). The others are rooflines: weights and KV cache are read at a share of the memory bandwidth,
arithmetic runs at a share of the peak; the two are added, as if they never overlapped. Weakness: a
roofline is right about ratios, but absolute times are off by some ten percent;
engine/simulated/pass_fit.py fits measured passes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

PassCurve = tuple[tuple[int, float], ...]
"""Seconds of a pass by its number of tokens: points ``(tokens, seconds)``, sorted by tokens.

Between points it is linear, before the first one constant, and the last segment continues. While a batch
does not yet fill a processor, time is not linear in tokens: on a CPU one token is fast, two may take
nearly twice as long, and eight no longer than two. Empty: no time at all."""


def checked(points: object, most_s: float) -> PassCurve:
    """Check points from JSON and return them as a curve. Raises ValueError that names the bad point."""
    allowed = "allowed: pairs of tokens, rising from 1 or more, and seconds; none, or at least two"
    if not isinstance(points, Sequence) or isinstance(points, str) or len(points) == 1:
        raise ValueError(f"pass_curve is {points!r}; {allowed}")
    curve: list[tuple[int, float]] = []
    for point in points:
        if not isinstance(point, Sequence) or len(point) != 2:
            raise ValueError(f"pass_curve has {point!r}; {allowed}")
        tokens, seconds = point
        whole = isinstance(tokens, int) and not isinstance(tokens, bool)
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        least = curve[-1][0] + 1 if curve else 1
        if not whole or tokens < least or not number or not 0 <= seconds <= most_s:
            raise ValueError(f"pass_curve has {point!r}; {allowed}")
        curve.append((tokens, float(seconds)))
    return tuple(curve)


def seconds_at(curve: PassCurve, tokens: int) -> float:
    """Return the curve's seconds for a pass of this many tokens; never below 0. O(log points)."""
    if not curve:
        return 0.0
    if tokens <= curve[0][0]:
        return curve[0][1]
    at = min(bisect_right(curve, tokens, key=lambda point: point[0]), len(curve) - 1)
    (before, low_s), (after, high_s) = curve[at - 1], curve[at]
    return max(0.0, low_s + (high_s - low_s) * (tokens - before) / (after - before))


_MOST_S = 1e9
"""Maximum coefficient: JSON has no infinity, but allows numbers that no float can hold."""

Loop = Literal["prefill-first", "mixed", "paged", "vtc-artifact"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of one model on one accelerator. Times are in seconds, sizes in tokens."""

    name: str
    kv_capacity_tokens: int
    """Capacity of one worker's pool, in tokens."""
    prefill_base_s: float
    prefill_s_per_token: float
    prefill_s_per_pair: float
    decode_base_s: float
    decode_s_per_sequence: float
    decode_s_per_held_token: float
    max_prefill_tokens: int = 8192
    """Maximum prompt tokens of one pass; longer prompts take several. With the loops ``mixed`` and
    ``paged`` the tokens of running decodes count, too."""
    max_running: int = 256
    """Maximum sequences in the batch."""
    loop: Loop = "prefill-first"
    """``prefill-first`` tries to admit before every pass and prefers prompts to decoding; ``mixed``
    is the loop of the embedded engine, which decodes in every pass and prefills beside it; ``paged``
    is that of vLLM, whose calls take blocks as they grow, and are preempted;
    ``vtc-artifact`` is the loop of the VTC paper's code (ALGORITHMS section 9)."""
    pass_curve: PassCurve = ()
    """Additional seconds of a pass, by the number of prompt tokens and decoding sequences."""
    origin: str = ""
    """Source of the numbers."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("name", "origin") and not isinstance(value, str):
                raise ValueError(f"{field.name} is {value!r}; allowed: a text")
            if field.name.endswith("_tokens") or field.name == "max_running":
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ValueError(
                        f"{field.name} is {value!r}; allowed: a whole number, 1 or more"
                    )
            elif field.type == "float":
                number = isinstance(value, int | float) and not isinstance(value, bool)
                if not number or not 0 <= value <= _MOST_S:
                    raise ValueError(f"{field.name} is {value!r}; allowed: 0 to {_MOST_S:g}")
        object.__setattr__(self, "pass_curve", checked(self.pass_curve, _MOST_S))
        if self.decode_s(1, 0, 1) <= 0:
            raise ValueError("a decode step takes no time; decode_base_s must be over 0")
        if self.loop not in get_args(Loop):
            allowed = ", ".join(repr(loop) for loop in get_args(Loop))
            raise ValueError(f"loop is {self.loop!r}; allowed: {allowed}")

    def prefill_s(self, tokens: int, pairs: float) -> float:
        """Return the seconds of a pass over this many prompt tokens."""
        return (
            self.prefill_base_s
            + tokens * self.prefill_s_per_token
            + pairs * self.prefill_s_per_pair
            + seconds_at(self.pass_curve, tokens)
        )

    def decode_s(self, sequences: int, held_tokens: int, steps: int) -> float:
        """Return the seconds of decode steps whose batch holds ``held_tokens`` at the first one."""
        each_s = (
            self.decode_base_s
            + sequences * self.decode_s_per_sequence
            + held_tokens * self.decode_s_per_held_token
            + seconds_at(self.pass_curve, sequences)
        )
        growth_s = sequences * self.decode_s_per_held_token
        return steps * each_s + growth_s * (steps * (steps - 1) // 2)

    def mixed_s(self, tokens: int, pairs: float, sequences: int, held_tokens: int) -> float:
        """Return the seconds of a pass over prompt tokens that is also a decode step of a batch."""
        return (
            self.prefill_base_s
            + tokens * self.prefill_s_per_token
            + pairs * self.prefill_s_per_pair
            + sequences * self.decode_s_per_sequence
            + held_tokens * self.decode_s_per_held_token
            + seconds_at(self.pass_curve, tokens + sequences)
        )


def pairs(cached_tokens: int, computed_tokens: int) -> float:
    """Return the number of pairs of a computed token and a token up to it, itself included."""
    return computed_tokens * cached_tokens + computed_tokens * (computed_tokens + 1) / 2


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Data sheet of an accelerator: dense bf16 FLOP/s, bytes/s and bytes."""

    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder model."""

    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of a token's keys and values in all layers, two bytes per number."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


BANDWIDTH_EFFICIENCY = 0.8
COMPUTE_EFFICIENCY = 0.55
MEMORY_SHARE = 0.88
"""Share of the accelerator's memory for weights and KV cache; activations use the rest."""
PASS_OVERHEAD_S = 0.003
"""Seconds of scheduling, sampling and launches per pass."""


def roofline(name: str, accelerator: Accelerator, model: ModelShape) -> CostModel:
    """Return a model's costs from data sheets and the efficiencies above."""
    compute = accelerator.flops_per_s * COMPUTE_EFFICIENCY
    bandwidth = accelerator.memory_bytes_per_s * BANDWIDTH_EFFICIENCY
    weights_bytes = 2 * model.parameters
    free_bytes = accelerator.memory_bytes * MEMORY_SHARE - weights_bytes
    token_s = 2 * model.parameters / compute
    return CostModel(
        name,
        kv_capacity_tokens=round(free_bytes / model.kv_bytes_per_token / 1000) * 1000,
        prefill_base_s=weights_bytes / bandwidth + PASS_OVERHEAD_S,
        prefill_s_per_token=token_s,
        prefill_s_per_pair=4 * model.hidden * model.layers / compute,
        decode_base_s=weights_bytes / bandwidth + PASS_OVERHEAD_S,
        decode_s_per_sequence=token_s,
        decode_s_per_held_token=model.kv_bytes_per_token / bandwidth,
        origin=f"roofline: {COMPUTE_EFFICIENCY:.0%} of peak FLOP/s, "
        f"{BANDWIDTH_EFFICIENCY:.0%} of memory bandwidth, {PASS_OVERHEAD_S * 1000:g} ms a pass",
    )


_A100 = Accelerator(312e12, 2.0e12, 80e9)
_H200 = Accelerator(989e12, 4.8e12, 141e9)
_A10G = Accelerator(70e12, 0.6e12, 24e9)
_LLAMA3_8B = ModelShape(8.03e9, layers=32, hidden=4096, kv_heads=8, head_dim=128)
_LLAMA32_3B = ModelShape(3.21e9, layers=28, hidden=3072, kv_heads=8, head_dim=128)

COST_MODELS: Mapping[str, CostModel] = {
    model.name: model
    for model in (
        CostModel(
            "a10g-llama2-7b",
            kv_capacity_tokens=10_000,
            prefill_base_s=0.0358,
            prefill_s_per_token=0.0002131,
            prefill_s_per_pair=0.0,
            decode_base_s=0.0193,
            decode_s_per_sequence=0.000245,
            decode_s_per_held_token=0.00000202,
            max_prefill_tokens=3072,
            max_running=1000,
            loop="vtc-artifact",
            origin="fitted to the totals that the VTC paper reports for its real trace",
        ),
        roofline("a100-llama3-8b", _A100, _LLAMA3_8B),
        roofline("a10g-llama3.2-3b", _A10G, _LLAMA32_3B),
        roofline("h200-llama3-8b", _H200, _LLAMA3_8B),
    )
}


def cost_model(name: str) -> CostModel:
    """Return a cost model by name, or from a JSON file with the fields of :class:`CostModel`.

    Raises ValueError that names the file, the field and the allowed values.
    """
    if name in COST_MODELS:
        return COST_MODELS[name]
    path = Path(name)
    if not path.is_file():
        known = ", ".join(COST_MODELS)
        raise ValueError(f"unknown cost model {name!r}; allowed: {known}, or a JSON file")
    try:
        values: Any = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: an object is expected, with the fields of a cost model")
    allowed = [field.name for field in fields(CostModel)]
    unknown = sorted(set(values) - set(allowed))
    if unknown:
        raise ValueError(f"{path}: unknown field {unknown[0]!r}; allowed: {', '.join(allowed)}")
    try:
        return CostModel(**{"name": path.stem, **values})
    except TypeError as error:
        missing = [name for name in allowed[1:8] if name not in values]
        raise ValueError(f"{path}: missing: {', '.join(missing)}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
