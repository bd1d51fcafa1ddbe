"""Recent attempts that a client library may repeat.

A library that received no answer sends the request again and marks it (``x-stainless-retry-count``).
The attempt that it gave up is then not charged, if no worker has computed anything for it: work that is
done is paid for. Only the first attempt of a call is waived, never a repetition. A fingerprint of app
and body identifies attempts; one repetition matches one attempt. Bounded in number and time, with a
share of each tenant. Weakness:
identical requests that run concurrently cannot be distinguished, and any of them may be the one that is
not charged.
"""

from __future__ import annotations

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.control.messages import CallRecord

MAX_ATTEMPTS = 10_000
RETENTION_S = 600.0


class RecentAttempts:
    """Ended first attempts that no worker began, by fingerprint. Operations are O(log tenants)."""

    def __init__(self, max_attempts: int = MAX_ATTEMPTS, retention_s: float = RETENTION_S) -> None:
        self._attempts: SharedTable[str, CallRecord] = SharedTable(max_attempts)
        self._retention_s = retention_s

    def remember(self, fingerprint: str, record: CallRecord, now_s: float) -> None:
        """Add a call that ended before a worker began it; it replaces an equal earlier one."""
        if fingerprint:
            self._attempts.expire(now_s)
            until_s = now_s + self._retention_s
            self._attempts.put((record.tenant,), fingerprint, record, until_s)

    def take(self, fingerprint: str, now_s: float) -> CallRecord | None:
        """Remove and return the attempt that is repeated now."""
        found = self._attempts.get(fingerprint, now_s)
        self._attempts.pop(fingerprint)
        return found
