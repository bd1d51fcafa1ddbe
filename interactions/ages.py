"""Ages of times in snapshots, without rounding.

Monotonic clocks of two processes differ, so a snapshot holds ages, not times. The difference of two
floats is often no float: ``now_s - (now_s - time_s)`` may differ from ``time_s`` in its last bit, and
an event at the edge of a window would then count on one side only. So an age is the exact difference
as a sum of two floats. On the same clock a time is restored bit by bit; on another one it is the
float closest to the shifted time, and the order of times stays. Cost: a few additions per time.
"""

from __future__ import annotations

import math
from typing import Any


def age_of(time_s: float, now_s: float) -> float | list[float]:
    """Return the exact age of a time at ``now_s``, as a plain JSON value; negative for a later time."""
    age_s = now_s - time_s
    if not math.isfinite(age_s):
        return age_s
    shifted = age_s - now_s
    rest_s = (now_s - (age_s - shifted)) - (time_s + shifted)  # the rounding error (Knuth's TwoSum)
    return [age_s, rest_s] if rest_s else age_s


def time_of(age: Any, now_s: float) -> float:
    """Return the time whose age at ``now_s`` is the result of :func:`age_of`."""
    if isinstance(age, list):
        return math.fsum((now_s, -age[0], -age[1]))
    return now_s - float(age)
