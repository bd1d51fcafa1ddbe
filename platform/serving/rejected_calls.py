"""Errors of calls that the platform makes itself, for programs and batches: which may be sent again."""

from __future__ import annotations

from fairserve.platform.base.errors import FairServeError, RateLimitedError, UnavailableError

NOT_SUBMITTED = frozenset({"lease_over", "log_unavailable"})
"""Codes of 503 answers to calls of which nothing was recorded."""
NOT_ACCEPTED = NOT_SUBMITTED | {"queue_full", "journal_unavailable", "starting", "draining"}
"""Codes of 503 answers to calls that were not accepted and may be sent again under their name."""


def is_over(error: FairServeError) -> bool:
    """Return True if the call was made and failed, or would be rejected every time."""
    if isinstance(error, UnavailableError):
        return error.code not in NOT_ACCEPTED
    return not isinstance(error, RateLimitedError)


def retry_after_s(error: FairServeError) -> float:
    """Return the seconds of an error's ``Retry-After``; 0 if it has none."""
    try:
        return float(error.headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
