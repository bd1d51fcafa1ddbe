"""Figures measured by benchmarks, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its target and the values of peers."""

    name: str
    unit: str
    what: str
    """Description in one line for the table."""
    target: float | None
    """None for a figure that is only reported."""
    aim: float | None = None
    peers: Mapping[str, float] = field(default_factory=dict)
    """Values of peers by name, in the same unit."""
    higher_is_better: bool = False

    def reached(self, value: float, goal: float) -> bool:
        """Return whether a value is at least as good as the goal."""
        return value >= goal if self.higher_is_better else value <= goal


@dataclass(frozen=True, slots=True)
class Reading:
    """The figures of one round of a workload."""

    figures: Mapping[str, float]
    details: Mapping[str, float] = field(default_factory=dict)
    """Other numbers by name, with the unit as suffix: parts of the figures, properties of the load."""


class BenchWorkload(Protocol):
    """A workload in its steady state, of which rounds can be measured repeatedly."""

    def round(self) -> Reading:
        """Run and measure one round. The state stays equally representative."""
        ...


@dataclass(frozen=True, slots=True)
class FigurePart:
    """Figures that are measured together by one workload."""

    figures: tuple[Figure, ...]
    build: Callable[[float], BenchWorkload]
    """Builds the workload at a share of its full size, which is 1 for figures that count."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Values of a figure, one per round."""

    figure: Figure
    values: tuple[float, ...]
    details: Mapping[str, float]
    """Medians over the rounds."""
    overall: float | None = None
    """Value over all rounds together, if it is not the median of the rounds."""

    @property
    def value(self) -> float:
        """Return the figure: ``overall``, or the median over the rounds."""
        return median(self.values) if self.overall is None else self.overall

    def to_plain(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
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
    """Return a share of a count, for a workload below its full size."""
    return max(least, round(count * scale))
