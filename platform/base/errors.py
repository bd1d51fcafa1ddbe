"""All errors of the API. No other module of the platform defines HTTP status codes.

``FairServeError`` is the root. All endpoints answer in OpenAI's format (``{"error": {"message",
"type", "param", "code"}}``, ``code`` is a string). A message names the error and the allowed
values, and never contains a key or a prompt.
"""

from __future__ import annotations

from typing import Any


class FairServeError(Exception):
    """An error with an HTTP status, a stable ``code`` and, if it concerns one, a field."""

    status = 500
    type = "api_error"
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.headers = headers or {}
        self.details = details
        """Fields of the error object beyond those of OpenAI."""

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the response."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if self.details is not None:
            error["fairserve"] = self.details
        return {"error": error}


class InvalidRequestError(FairServeError):
    """A field is missing, has a wrong type or a value that is not allowed."""

    status, type, code = 400, "invalid_request_error", "invalid_value"


class ContextLengthError(InvalidRequestError):
    """Prompt and output exceed the model's context length."""

    code = "context_length_exceeded"


class AuthenticationError(FairServeError):
    """The key is missing, unknown, revoked or expired."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class PermissionDeniedError(FairServeError):
    """The key is valid, but its scope or role does not allow the request."""

    status, type, code = 403, "permission_error", "insufficient_scope"


class NotFoundError(FairServeError):
    """The object does not exist or belongs to another tenant; the response is the same."""

    status, type, code = 404, "not_found_error", "not_found"


class ConflictError(FairServeError):
    """The object exists already, or its state does not allow the operation."""

    status, type, code = 409, "conflict_error", "conflict"


class GoneError(FairServeError):
    """The object existed and has expired."""

    status, type, code = 410, "gone_error", "gone"


class RequestTimeoutError(FairServeError):
    """A request did not arrive in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class HeadTooLargeError(FairServeError):
    """The request line and the headers exceed the limit."""

    status, type, code = 431, "invalid_request_error", "head_too_large"


class BodyTooLargeError(FairServeError):
    """The request body exceeds the limit."""

    status, type, code = 413, "invalid_request_error", "body_too_large"


class UnsupportedCodingError(FairServeError):
    """The body has a content coding that is not read; the response always has ``Accept-Encoding``."""

    status, type, code = 415, "invalid_request_error", "unsupported_content_encoding"


class UnprocessableError(FairServeError):
    """The request is well formed but refers to an object that does not exist (a parent call)."""

    status, type, code = 422, "invalid_request_error", "unprocessable"


class RateLimitedError(FairServeError):
    """A throttle rejected the call; the response always has ``Retry-After``."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class InsufficientQuotaError(FairServeError):
    """A budget is spent; a retry fails until its next period."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"


class UnavailableError(FairServeError):
    """No capacity: no worker, a full queue, too long a wait, or a draining server."""

    status, type, code = 503, "unavailable_error", "unavailable"


class UpstreamError(FairServeError):
    """Workers failed because of the call; a retry would fail, too."""

    status, type, code = 502, "upstream_error", "upstream_error"


class WorkerFailedError(FairServeError):
    """The worker failed after the response had begun."""

    status, type, code = 502, "worker_error", "worker_failed"
