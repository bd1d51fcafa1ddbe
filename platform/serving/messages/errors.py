"""Errors in Anthropic's format, with the statuses that all protocols share.

Clients choose their exception by the status, and show the message. The details of a rejection are
under ``fairserve``, as in OpenAI's format.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.base.request_facts import current_request_id

VERSION_HEADER = "anthropic-version"
PATHS = ("/v1/messages", "/v1/messages/count_tokens")
SHARED_PATH = "/v1/models"
"""Path of both vendors, whose clients differ by the header with the version."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: FairServeError) -> dict[str, Any]:
    """Return the body of an error, or the data of its event."""
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    found: dict[str, Any] = {
        "type": _TYPES.get(error.status, fallback),
        "message": error.message,
    }
    if error.details is not None:
        found["fairserve"] = error.details
    return {"type": "error", "error": found, "request_id": current_request_id()}


def wants_messages_format(scope: Scope) -> bool:
    """Return True for requests of Anthropic's clients, whose errors have that format."""
    path: str = scope["path"]
    if path in PATHS:
        return True
    if path != SHARED_PATH and not path.startswith(f"{SHARED_PATH}/"):
        return False
    return any(name == VERSION_HEADER.encode() for name, _ in scope["headers"])
