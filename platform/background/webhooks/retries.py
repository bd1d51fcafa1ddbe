"""When a failed delivery is tried again, and how long an endpoint rests that fails many times in a row.

The steps grow as the Standard Webhooks specification suggests. Each is lengthened by up to a tenth, by a
hash of what is sent, so that the deliveries of one outage do not come back at the same moment and a test
knows when they do.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from fairserve.engine.backoff import Backoff

STEPS_S = (5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
"""After the first, second, ... attempt; the last one again and again."""
JITTER = 0.1

REST_AFTER_FAILURES = 5
"""In a row, of an endpoint."""
FIRST_REST_S = 30.0
LAST_REST_S = 600.0
_REST = Backoff(FIRST_REST_S, LAST_REST_S)


def delay_s(endpoint_id: str, event_id: str, attempts: int, asked_s: float | None = None) -> float:
    """How long to wait after so many attempts, in seconds. ``asked_s``: the receiver's ``Retry-After``,
    which holds up to the step after this one.
    """
    own_s = _step_s(attempts) * (1 + JITTER * _fraction(endpoint_id, event_id, attempts))
    if asked_s is None:
        return own_s
    return max(own_s, min(asked_s, _step_s(attempts + 1)))


def rest_s(failures: int) -> float:
    """How long an endpoint rests after so many failures in a row; shorter than the step of an event that
    has failed as often.
    """
    return _REST.pause_s(failures - REST_AFTER_FAILURES + 1)


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """A ``Retry-After``, seconds or a date, as seconds from now; None if there is none to be read."""
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


def _step_s(attempts: int) -> float:
    return float(STEPS_S[min(max(attempts, 1), len(STEPS_S)) - 1])


def _fraction(*parts: str | int) -> float:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64
