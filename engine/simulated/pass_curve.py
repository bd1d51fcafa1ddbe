"""Seconds of a pass by its number of tokens, interpolated linearly between points.

While a batch does not yet fill a processor, time is not linear in tokens: on a CPU one token is
fast, two may take nearly twice as long, and eight no longer than two. A curve has about one point
per power of two. It is constant before its first point and extrapolates its last segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

PassCurve = tuple[tuple[int, float], ...]
"""Points ``(tokens, seconds)``, sorted by tokens; empty: no time at all."""


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
