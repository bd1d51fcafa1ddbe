"""UTC time of the process: the system's clock, without its jumps.

A clock that jumps, because of a bad time server or an operator's mistake, would end budgets, leases,
keys and retention early, and what is dated in the jump would be wrong after it. So time advances with
the monotonic clock, and follows the system's clock as long as that runs on:

- Differences up to ``SLEW_S`` are followed at once forwards; backwards time waits until it is reached.
- A larger one is a jump. It is ignored until it has lasted for ``SETTLE_S``, and then followed in one
  step, also backwards. Whoever keeps a time must therefore recover from one in the future.

Worked timeline: the clock jumps by 2 days at 100 s and back at 160 s: nothing happens. It jumps at 1,000
s and stays: from 1,300 s on it is believed.

Weakness: a process that starts while the clock is wrong takes that time for the right one, and the right
one for a jump. A suspended machine looks like a jump where the monotonic clock omits the suspension.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

logger = logging.getLogger(__name__)

SLEW_S = 5.0
SETTLE_S = 300.0


uptime_s = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns monotonic seconds that include the time in suspension, where the system counts it."""


class SteadyClock:
    """UTC epoch seconds. Call it from any thread; about 1 us."""

    def __init__(
        self,
        system: Callable[[], float] = time.time,
        uptime: Callable[[], float] = uptime_s,
    ) -> None:
        self._system, self._uptime = system, uptime
        self._lock = threading.Lock()
        self._now = self._system()
        """Time that was returned last."""
        self._offset = self._now - self._uptime()
        """Believed difference of the system's clock and the uptime."""
        self._jumped: tuple[float, float] | None = None
        """Offset after a jump that is not believed yet, and the uptime at which it was seen."""

    def __call__(self) -> float:
        """Return the time."""
        with self._lock:
            uptime_s = self._uptime()
            offset = self._system() - uptime_s
            if self._jumped is None and abs(offset - self._offset) <= SLEW_S:
                self._offset = offset
            else:
                self._jump(offset, uptime_s)
            now = self._offset + uptime_s
            if now > self._now or self._now - now > SLEW_S:
                self._now = now
            return self._now

    def _jump(self, offset: float, uptime_s: float) -> None:
        """Follow a clock that has jumped."""
        if abs(offset - self._offset) <= SLEW_S:
            logger.warning("the system's clock is back")
            self._offset, self._jumped = offset, None
            return
        if self._jumped is None or abs(offset - self._jumped[0]) > SLEW_S:
            self._jumped = (offset, uptime_s)
            logger.warning(
                "the system's clock jumped by %+.0f s; that is ignored unless it lasts for %.0f s",
                offset - self._offset,
                SETTLE_S,
            )
        elif uptime_s - self._jumped[1] >= SETTLE_S:
            logger.warning("the clock's jump by %+.0f s is believed now", offset - self._offset)
            self._offset, self._jumped = offset, None


utc_s = SteadyClock()
"""UTC epoch seconds of this process."""
