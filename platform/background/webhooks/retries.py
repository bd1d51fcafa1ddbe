"""Delays between attempts of a delivery, and pauses of an endpoint after consecutive failures.

The delays increase as the Standard Webhooks specification suggests. Each gets a jitter of up to 10 %
from a hash of the delivery, so that the deliveries of one outage are not retried at the same time, and
tests can compute the times.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from fairserve.engine.backoff import Backoff

DELAYS_S = (5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
"""Delays in seconds after the first, second, ... attempt of a delivery; the last one repeats."""
JITTER = 0.1

PAUSE_AFTER_FAILURES = 5
"""Number of consecutive failures after which an endpoint pauses."""
PAUSES = Backoff(30.0, 600.0)


def delay_s(endpoint_id: str, event_id: str, attempts: int, asked_s: float | None = None) -> float:
    """Return the seconds to wait after this many attempts.

    ``asked_s`` is the receiver's ``Retry-After``, bounded by the delay after the next attempt.
    """
    own_s = _own_delay_s(attempts) * (1 + JITTER * _fraction(endpoint_id, event_id, attempts))
    if asked_s is None:
        return own_s
    return max(own_s, min(asked_s, _own_delay_s(attempts + 1)))


def pause_s(failures: int) -> float:
    """Return the pause of an endpoint in seconds after this many consecutive failures.

    It is shorter than the delay of a delivery with as many failures.
    """
    return PAUSES.pause_s(failures - PAUSE_AFTER_FAILURES + 1)


def _own_delay_s(attempts: int) -> float:
    return DELAYS_S[min(max(attempts, 1), len(DELAYS_S)) - 1]


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a ``Retry-After``, a number or a date; None if it cannot be parsed."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return float(min(int(text[:12]), 10**9))
    try:
        time = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0.0, (time - now) / timedelta(seconds=1))


def _fraction(*parts: str | int) -> float:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64
