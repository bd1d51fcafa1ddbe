"""Parts of the time of our engine's steps, as medians and shares.

Shares are of the total time of the selected steps. *Overhead* is the engine's work besides the
model and the choice of tokens: schedule, prepare, publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fairserve.engine.torch.bench.runner import PARTS, TimedStep

_OVERHEAD = ("schedule", "prepare", "publish")


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts of the time of some steps."""

    steps: int
    step_ms: float
    """Median duration of a step in ms."""
    parts_ms: dict[str, float]
    """Median of each part in ms."""
    shares: dict[str, float]
    """Share of each part; they sum to 1."""

    @property
    def overhead(self) -> float:
        """Return the share of the time that neither computed nor sampled."""
        return sum(self.shares[part] for part in _OVERHEAD)

    def to_plain(self) -> dict[str, Any]:
        """Return the breakdown as plain JSON values."""
        return {
            "steps": self.steps,
            "step_ms": self.step_ms,
            "parts_ms": self.parts_ms,
            "shares": self.shares,
            "overhead_share": self.overhead,
        }


def break_down(steps: Sequence[TimedStep]) -> Breakdown:
    """Return the breakdown of at least one step."""
    total_s = sum(step.total_s for step in steps)
    columns = list(zip(*(step.parts_s for step in steps), strict=True))
    return Breakdown(
        len(steps),
        1000 * median(step.total_s for step in steps),
        {part: 1000 * median(column) for part, column in zip(PARTS, columns, strict=True)},
        {part: sum(column) / total_s for part, column in zip(PARTS, columns, strict=True)},
    )


def full_decodes(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Return the steps that decoded the largest batch and did nothing else."""
    decodes = [step for step in steps if not step.load.prefill_tokens]
    most = max((step.load.sequences for step in decodes), default=0)
    return [step for step in decodes if step.load.sequences == most]


def full_prefills(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Return the steps that prefilled the most tokens and decoded nothing."""
    prefills = [step for step in steps if not step.load.sequences]
    most = max((step.load.prefill_tokens for step in prefills), default=0)
    return [step for step in prefills if step.load.prefill_tokens == most]
