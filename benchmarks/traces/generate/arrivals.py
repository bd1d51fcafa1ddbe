"""Arrival processes: they draw arrival times within a duration.

Even spacing from a random offset and gamma-distributed gaps are the two processes of VTC's
evaluation (section 5.2; the DLPM paper's section 6.1 also uses gamma). Ramps, silences and phases
are built on them for VTC's Figures 5, 6, 9 and 10. A process is a frozen description and holds no
state.

Weakness: clients are independent of each other and of their service. Only the calls within an
interaction wait for each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
"""Array of ascending times in seconds."""


class Arrivals(Protocol):
    """An arrival process."""

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Return times in [0, duration_s), ascending. Advances ``rng``."""
        ...


@dataclass(frozen=True, slots=True)
class EvenArrivals:
    """Process with one arrival every 1/rate seconds from an offset uniform in [0, 1/rate)."""

    rate_per_s: float

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Return times in [0, duration_s), ascending. Advances ``rng`` by one draw."""
        return _whole_arrivals(self.rate_per_s * duration_s, rng) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Independent gamma-distributed gaps of mean 1/rate; shape 1/cv^2, so that cv 1 is Poisson."""

    rate_per_s: float
    cv: float = 1.0

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Return times in [0, duration_s), ascending. Advances ``rng``."""
        shape, scale = 1 / self.cv**2, self.cv**2 / self.rate_per_s
        batch = int(self.rate_per_s * duration_s) + 16
        times = np.cumsum(rng.gamma(shape, scale, batch))
        while times[-1] < duration_s:
            times = np.append(times, times[-1] + np.cumsum(rng.gamma(shape, scale, batch)))
        return times[times < duration_s]


@dataclass(frozen=True, slots=True)
class RampArrivals:
    """A rate that changes linearly from one value to another over the whole duration.

    Only the offset is random: the k-th arrival is where the integral of the rate reaches k +
    offset.
    """

    from_per_s: float
    to_per_s: float

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Return times in [0, duration_s), ascending. Advances ``rng`` by one draw."""
        expected = duration_s * (self.from_per_s + self.to_per_s) / 2
        counts = _whole_arrivals(expected, rng)
        slope = (self.to_per_s - self.from_per_s) / duration_s
        # This form of the root of slope/2 * t^2 + from * t = count does not divide by the slope.
        return 2 * counts / (self.from_per_s + np.sqrt(self.from_per_s**2 + 2 * slope * counts))


@dataclass(frozen=True, slots=True)
class OnOffArrivals:
    """Another process that is on for ``on_s`` seconds, then off for ``off_s``, repeatedly.

    The process runs on a clock that stops while off, so its rate is that of the on phases.
    """

    arrivals: Arrivals
    on_s: float = 60.0
    off_s: float = 60.0

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Return times in [0, duration_s), ascending, all in on phases. Advances ``rng``."""
        period = self.on_s + self.off_s
        whole = math.floor(duration_s / period)
        heard = whole * self.on_s + min(self.on_s, duration_s - whole * period)
        times = self.arrivals.times_s(heard, rng)
        moved = np.floor(times / self.on_s) * period + times % self.on_s
        return moved[moved < duration_s]


@dataclass(frozen=True, slots=True)
class PhasedArrivals:
    """A sequence of processes, each with its duration in seconds; silence after the last."""

    phases: tuple[tuple[float, Arrivals], ...]

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Return times in [0, duration_s), ascending. Advances ``rng``, also for cut phases."""
        start, parts = 0.0, []
        for seconds, arrivals in self.phases:
            parts.append(start + arrivals.times_s(seconds, rng))
            start += seconds
        times = np.concatenate(parts)
        return times[times < duration_s]


def _whole_arrivals(expected: float, rng: np.random.Generator) -> Times:
    """Return the numbers 0, 1, 2, ... plus a random offset in [0, 1), below ``expected``."""
    offset = rng.random()
    return offset + np.arange(max(0, math.ceil(expected - offset)), dtype=np.float64)
