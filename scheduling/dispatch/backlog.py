"""The backlog of a pool: whether work waits for capacity, whichever is scarce, and for how long.

Demand over the KV capacity (ALGORITHMS section 4) sees one bottleneck. Workers that are full because of
their slots or of their compute hold little memory, and memory that is kept for runs between their calls
is no demand. So while calls wait and no worker can take them, the capacity is what the workers have in
use: a queue of as much demand again is a load of 2. With full KV caches both are the same. Calls wait if
the queue has not been empty for ``WAIT_S``, so that a burst is no overload.

The expected wait is the queued demand over the demand that left the queue per second. Under a fair order
clients with little in the queue wait less.

Cost: O(1).
"""

from __future__ import annotations

import math
from typing import Any

from fairserve.interactions.ages import age_of, time_of

WAIT_S = 5.0
"""Seconds without an empty queue after which work waits for capacity."""
WINDOW_S = 30.0
"""Time constant of the rate, and of the decay of the use."""
LONGEST_WAIT_S = 3600.0
"""Bound of the expected wait."""


class Backlog:
    """Belongs to one feed, ticked about once a second."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        """Start of the time without an empty queue, as far as seen by ticks."""
        self._at_s: float | None = None
        self._rate = self._weight = 0.0
        """Tokens sent to workers, and the seconds in which they were, both decaying."""
        self._used_tokens = 0.0
        self.waits = False
        """True if work waits for capacity."""
        self.emptied = True
        """True if the queue has been empty since the last tick."""
        self.sent_tokens = 0
        """Demand that has left the queue since the last tick."""

    def tick(self, now_s: float, *, blocked: bool, used_tokens: int) -> None:
        """Take the state after a pump.

        ``blocked``: calls wait that no worker can take; ``used_tokens``: demand of the workers in use.
        """
        blocked, self.emptied = blocked and not self.emptied, not blocked
        sent_tokens, self.sent_tokens = self.sent_tokens, 0
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        kept = math.exp(-passed_s / WINDOW_S)
        self._used_tokens = max(used_tokens, kept * self._used_tokens)
        self._rate, self._weight = kept * self._rate, kept * self._weight
        if not blocked:
            self._since_s, self.waits = None, False
            return
        if self._since_s is None:
            self._since_s = now_s
        self._rate += sent_tokens
        self._weight += passed_s
        self.waits = now_s - self._since_s >= WAIT_S

    def capacity(self, capacity_tokens: int, used_tokens: int) -> int:
        """Return the capacity while work waits for it."""
        return min(capacity_tokens, max(1, used_tokens, round(self._used_tokens)))

    def expected_wait_s(self, queued_tokens: int) -> float:
        """Return how long a call that is queued now is expected to wait; 0 if work does not wait."""
        if not self.waits or self._since_s is None or self._at_s is None:
            return 0.0
        if self._rate <= 0.0:  # nothing has left the queue
            return min(LONGEST_WAIT_S, max(WAIT_S, self._at_s - self._since_s))
        return min(LONGEST_WAIT_S, queued_tokens * self._weight / self._rate)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "since": None if self._since_s is None else age_of(self._since_s, now_s),
            "at": None if self._at_s is None else age_of(self._at_s, now_s),
            "rate": [self._rate, self._weight],
            "used": self._used_tokens,
            "waits": self.waits,
            "emptied": self.emptied,
            "sent": self.sent_tokens,
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        since, at = state["since"], state["at"]
        self._since_s = None if since is None else time_of(since, now_s)
        self._at_s = None if at is None else time_of(at, now_s)
        self._rate, self._weight = state["rate"]
        self._used_tokens, self.waits = state["used"], state["waits"]
        self.emptied, self.sent_tokens = state["emptied"], state["sent"]
