"""Recent attempts that a client library may repeat.

A library that received no answer sends the request again and marks it (``x-stainless-retry-count``).
The attempt that it gave up is then not charged, if no worker has computed anything for it: work that is
done is paid for. Only the first attempt of a call is waived, never a repetition. A fingerprint of app
and body identifies attempts; one repetition matches one attempt. Bounded in number and time. Weakness:
identical requests that run concurrently cannot be distinguished, and any of them may be the one that is
not charged.
"""

from __future__ import annotations

from collections import OrderedDict

from fairserve.platform.control.messages import CallRecord

MAX_ATTEMPTS = 10_000
RETENTION_S = 600.0


class RecentAttempts:
    """Ended first attempts that no worker began, by fingerprint. Operations are O(1) amortised."""

    def __init__(self, max_attempts: int = MAX_ATTEMPTS, retention_s: float = RETENTION_S) -> None:
        self._max_attempts = max_attempts
        self._retention_s = retention_s
        self._attempts: OrderedDict[str, tuple[float, CallRecord]] = OrderedDict()

    def remember(self, fingerprint: str, record: CallRecord, now_s: float) -> None:
        """Add a call that ended before a worker began it; it replaces an equal earlier one."""
        if not fingerprint:
            return
        self._attempts[fingerprint] = (now_s, record)
        self._attempts.move_to_end(fingerprint)
        while len(self._attempts) > self._max_attempts or self._oldest_is_stale(now_s):
            self._attempts.popitem(last=False)

    def take(self, fingerprint: str, now_s: float) -> CallRecord | None:
        """Remove and return the attempt that is repeated now."""
        found = self._attempts.pop(fingerprint, None)
        if found is None or now_s - found[0] > self._retention_s:
            return None
        return found[1]

    def _oldest_is_stale(self, now_s: float) -> bool:
        ended_s, _ = next(iter(self._attempts.values()))
        return now_s - ended_s > self._retention_s
