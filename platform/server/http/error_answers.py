"""Errors of the API in the shape of the client's protocol."""

from __future__ import annotations

from sqlalchemy.exc import DataError, OperationalError
from starlette.responses import JSONResponse
from starlette.types import Scope

from fairserve.platform.base.errors import FairServeError, InvalidRequestError
from fairserve.platform.base.request_facts import add_error
from fairserve.platform.db.session import unavailable
from fairserve.platform.serving.messages.errors import error_body, wants_messages_format


def api_error(error: Exception) -> FairServeError:
    """Return the error that answers a request which any error ended; that of a bug is a plain 500."""
    if isinstance(error, FairServeError):
        return error
    if isinstance(error, DataError):  # PostgreSQL stores no text with NUL, for instance
        return InvalidRequestError("a value has characters that the database cannot store")
    if isinstance(error, OperationalError):
        return unavailable()
    return FairServeError("internal error")


def error_response(scope: Scope, error: FairServeError) -> JSONResponse:
    """Return the answer to a request that failed before anything was sent, and log its code.

    It names the coding of a compressed body, which may be that of a proxy and not of the client.
    """
    add_error(error)
    coding = scope.get("state", {}).pop("coding", None)
    if coding is not None and isinstance(error, InvalidRequestError):
        error.message = f"{error.message} (in the body that was decoded from {coding})"
    body = error_body(error) if wants_messages_format(scope) else error.body()
    return JSONResponse(body, status_code=error.status, headers=error.headers)
