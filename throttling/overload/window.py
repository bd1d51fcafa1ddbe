"""Counts of the events of the last minute per key, in bounded memory.

:class:`SlidingLog` keeps the times of at most ``limit + 1`` events per key: more cannot change
whether the limit is exceeded. Older events of the window are only counted, in buckets of one
second, so that reports show by how much a key exceeds its limit. Worked timeline, window 60 s,
limit 2: events at 0, 10 and 20 give the counts 1, 2 and 3; at 61 the event at 0 has left the
window, so one more makes 3 again (10, 20, 61). Weakness: a sliding log admits a burst of ``limit``
calls at once; it bounds counts, not rates.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.tracking.shared_table import tick_share
from fairserve.throttling.base import LimitUse
from fairserve.throttling.quotas.rate_window import RateWindow


class SlidingLog:
    """Times of recent events per key. All times are monotonic seconds and must not decrease."""

    def __init__(self, window_s: float = 60.0) -> None:
        if not window_s > 0:
            raise ValueError(f"window_s is {window_s}; allowed: over 0")
        self.window_s = window_s
        self._times: OrderedDict[str, list[float]] = OrderedDict()
        """Times of each key, ascending; the key of the latest event is the last one."""
        self._older: dict[str, RateWindow] = {}
        """Counts of the window's older events, for the keys over their limit."""

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._times)

    def count(self, key: str, now_s: float) -> int:
        """Return the number of events of ``key`` in the window; at most the last limit + 1.

        An event counts while it is later than ``now_s - window_s``. All methods compare with this
        difference, so that rounding cannot make one of them drop an event that another counts.
        """
        times = self._times.get(key, ())
        return len(times) - bisect_right(times, now_s - self.window_s)

    def count_all(self, key: str, now_s: float) -> int:
        """Return the number of all events of ``key`` in the window.

        Events before the last limit + 1 count for up to a second longer than the window.
        """
        older = self._older.get(key)
        if older is None:
            return self.count(key, now_s)
        older.drop_old(now_s)
        return self.count(key, now_s) + older.total

    def record(self, key: str, limit: int, now_s: float) -> None:
        """Record an event at ``now_s``; keep the times of the last ``limit + 1``. O(1) amortised."""
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = []
        else:
            self._times.move_to_end(key)
        times.append(now_s)
        surplus = len(times) - limit - 1
        if surplus > 0:
            for time_s in times[:surplus]:
                if time_s > now_s - self.window_s:
                    older = self._older.get(key)
                    if older is None:
                        older = self._older[key] = RateWindow(self.window_s)
                    older.drop_old(now_s)
                    older.add(1, time_s)
            del times[:surplus]

    def free_after_s(self, key: str, limit: int, now_s: float, *, record_now: bool) -> float:
        """Return the seconds until the count, with one more event, is at most ``limit``.

        With ``record_now`` an event at ``now_s`` counts as recorded (for rejections that count). At
        ``now_s`` plus the result the count is guaranteed to be that low, despite rounding.
        """
        times = self._times.get(key, [])
        if record_now:
            limit -= 1
            if not limit:
                return self.window_s
        if len(times) < limit or times[-limit] <= now_s - self.window_s:
            return 0.0
        time_s = times[-limit]
        end_s = max(time_s + self.window_s, math.nextafter(now_s, math.inf))
        while end_s - self.window_s < time_s:
            end_s = math.nextafter(end_s, math.inf)
        after_s = end_s - now_s
        while now_s + after_s < end_s:
            after_s = math.nextafter(after_s, math.inf)
        return after_s

    def use(self, key: str, limit: int, now_s: float) -> LimitUse:
        """Return the use of a limit on this key."""
        used = min(limit, self.count(key, now_s))
        return LimitUse(limit, used, self.free_after_s(key, 1, now_s, record_now=False))

    def forget_idle(self, now_s: float) -> None:
        """Drop keys without an event in the window. O(dropped), and at most a share of the keys."""
        horizon_s = now_s - self.window_s - 1.0  # counts of older events end a second later
        for _ in range(tick_share(len(self._times))):
            key, times = next(iter(self._times.items()))
            if times[-1] > horizon_s:
                return
            del self._times[key]
            self._older.pop(key, None)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the ages of the logged events, and the counts of older ones by age."""
        return {
            "ages": {
                key: [age_of(time_s, now_s) for time_s in times]
                for key, times in self._times.items()
            },
            "older": {key: older.snapshot(now_s) for key, older in self._older.items()},
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._times = OrderedDict(
            (key, [time_of(age, now_s) for age in ages]) for key, ages in state["ages"].items()
        )
        self._older = {key: RateWindow(self.window_s) for key in state["older"]}
        for key, older in self._older.items():
            older.restore(state["older"][key], now_s)
