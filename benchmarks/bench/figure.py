"""Figures that benchmarks measure, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its target and the numbers of others."""

    name: str
    unit: str
    what: str
    """One line for the table's reader."""
    target: float
    aim: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict)
    """Values of others for the same, by name, in the same unit."""
    higher_is_better: bool = False

    def reached(self, value: float, goal: float) -> bool:
        """Return whether a value is at least as good as the goal."""
        return value >= goal if self.higher_is_better else value <= goal


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one round of a workload."""

    figures: Mapping[str, float]
    details: Mapping[str, float] = field(default_factory=dict)
    """Other numbers by name, unit at its end: parts of the figures, properties of the load."""


class Workload(Protocol):
    """Something in its steady state, of which a round can be measured again and again."""

    def round(self) -> Reading:
        """Do a round's work and measure it. The state stays as representative as it was."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """Figures that one workload measures together."""

    figures: tuple[Figure, ...]
    build: Callable[[float], Workload]
    """Makes the workload at a share of its full size, 1 for figures that count."""


@dataclass(frozen=True, slots=True)
class Result:
    """A figure's values, one for each round."""

    figure: Figure
    values: tuple[float, ...]
    details: Mapping[str, float]
    """Medians over the rounds."""
    overall: float | None = None
    """The value over all rounds together, where it is not the median of the rounds."""

    @property
    def value(self) -> float:
        """The figure: ``overall``, or the median over the rounds."""
        return median(self.values) if self.overall is None else self.overall

    def to_plain(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "name": self.figure.name,
            "value": self.value,
            "unit": self.figure.unit,
            "spread": [min(*self.values, self.value), max(*self.values, self.value)],
            "target": self.figure.target,
            "aim": self.figure.aim,
            "higher_is_better": self.figure.higher_is_better,
            "peers": dict(self.figure.peers),
            "what": self.figure.what,
            "details": dict(self.details),
        }


def sized(count: int, scale: float, least: int = 1) -> int:
    """A share of a count, for a workload that is smaller than its full size."""
    return max(least, round(count * scale))
