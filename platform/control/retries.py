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

from collections.abc import Sequence
from typing import Any

from fairserve.interactions.tracking.shared_table import SharedTable

Fields = dict[str, Any]
"""Fields of a :class:`~fairserve.platform.control.messages.CallRecord`."""

MAX_ATTEMPTS = 10_000
RETENTION_S = 600.0


class RecentAttempts:
    """Ended first attempts that no worker began, by fingerprint. Operations are O(log tenants)."""

    def __init__(self, max_attempts: int = MAX_ATTEMPTS, retention_s: float = RETENTION_S) -> None:
        self._attempts: SharedTable[str, Fields] = SharedTable(max_attempts)
        self._retention_s = retention_s

    def remember(self, fingerprint: str, row: Fields, now_s: float) -> None:
        """Add the row of a call that ended before a worker began it; an equal earlier one goes."""
        if fingerprint:
            self._attempts.expire(now_s)
            until_s = now_s + self._retention_s
            self._attempts.put((row["tenant"],), fingerprint, row, until_s)

    def take(self, fingerprint: str, now_s: float) -> Fields | None:
        """Remove and return the row of the attempt that is repeated now."""
        found = self._attempts.get(fingerprint, now_s)
        self._attempts.pop(fingerprint)
        return found

    def snapshot(self) -> list[list[Any]]:
        """Return the state as plain JSON values."""
        return self._attempts.snapshot(lambda fingerprint, row: [fingerprint, row])

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Replace the state by an earlier snapshot."""
        self._attempts.restore(state, lambda plain: (plain[0], _row(plain[1])))


def _row(plain: Fields) -> Fields:
    return {**plain, "parents": tuple(plain["parents"])}
