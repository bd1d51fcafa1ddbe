"""Translates errors of the core about runs into errors of the API."""

from __future__ import annotations

import math

from fairserve.interactions import errors
from fairserve.interactions.call import Call
from fairserve.platform.base.errors import (
    ConflictError,
    FairServeError,
    NotFoundError,
    RateLimitedError,
    UnavailableError,
    UnprocessableError,
)

_ERRORS: dict[type[errors.InteractionError], tuple[type[FairServeError], str, str | None]] = {
    errors.UnknownParentError: (UnprocessableError, "unknown_parent", "X-Parent-Ids"),
    errors.CycleError: (ConflictError, "call_cycle", "X-Parent-Ids"),
    errors.DuplicateCallError: (ConflictError, "duplicate_call", "X-Call-Id"),
    errors.InteractionClosedError: (ConflictError, "interaction_closed", "X-Interaction-Id"),
    errors.InteractionNotFoundError: (NotFoundError, "interaction_not_found", None),
    errors.DeclaredInteractionError: (ConflictError, "program_run", "X-Interaction-Id"),
    errors.ForeignInteractionError: (NotFoundError, "interaction_not_found", "X-Interaction-Id"),
    errors.TrackerFullError: (UnavailableError, "too_many_interactions", None),
    errors.OpenInteractionsError: (RateLimitedError, "too_many_open_interactions", None),
    errors.OpeningRateError: (RateLimitedError, "too_many_openings", None),
}

RETRY_S = 5.0
"""Seconds after which a client may retry a call for which there was no capacity."""


def api_error(error: errors.InteractionError, app: str, call: Call | None = None) -> FairServeError:
    """Return the error of the API for one of the core, whose text has the client's ids."""
    text = str(error)
    if call is not None:
        text = text.replace(f"{call.interaction_id}/", "")
    text = text.replace(f"{app}/", "")
    kind, code, param = _ERRORS.get(type(error), (ConflictError, "conflict", None))
    if isinstance(error, errors.ForeignInteractionError):
        text = "there is no such interaction for this user"
    if isinstance(error, errors.InteractionClosedError) and call is not None:
        text += "; begin a new run with another X-Interaction-Id"
    retry_s = error.retry_after_s if isinstance(error, errors.OpeningRateError) else RETRY_S
    later = issubclass(kind, (UnavailableError, RateLimitedError))
    headers = {"Retry-After": f"{max(1, math.ceil(retry_s))}"} if later else {}
    return kind(text, code=code, param=param, headers=headers)
