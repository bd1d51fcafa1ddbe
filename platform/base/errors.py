"""Every error that the API answers with, and the only place that knows HTTP status codes.

``FairServeError`` is the root. Calls answer in OpenAI's shape (notes: ``{"error": {"message",
"type", "param", "code"}}``, ``code`` a string); management endpoints use the same shape.
Messages say what was wrong and what is allowed, and never contain a key or a prompt.
"""

from __future__ import annotations

from typing import Any


class FairServeError(Exception):
    """An error with an HTTP status, a stable ``code`` and, where one is to blame, a field."""

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
        """What OpenAI's shape has no field for."""

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
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
    """Prompt and output do not fit the model's context."""

    code = "context_length_exceeded"


class AuthenticationError(FairServeError):
    """No key, an unknown one, or a revoked or expired one."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class PermissionDeniedError(FairServeError):
    """The key is valid, its scope is not enough."""

    status, type, code = 403, "permission_error", "insufficient_scope"


class NotFoundError(FairServeError):
    """It does not exist, or belongs to another tenant; the two look the same."""

    status, type, code = 404, "not_found_error", "not_found"


class ConflictError(FairServeError):
    """It exists already, or its state does not allow this."""

    status, type, code = 409, "conflict_error", "conflict"


class GoneError(FairServeError):
    """It was there, and its time is over."""

    status, type, code = 410, "gone_error", "gone"


class RequestTimeoutError(FairServeError):
    """A request did not arrive in time."""

    status, type, code = 408, "invalid_request_error", "request_timeout"


class HeadTooLargeError(FairServeError):
    """The request line and the headers are over the limit."""

    status, type, code = 431, "invalid_request_error", "head_too_large"


class BodyTooLargeError(FairServeError):
    """The request body is over the limit."""

    status, type, code = 413, "invalid_request_error", "body_too_large"


class UnprocessableError(FairServeError):
    """Well formed, but it refers to something that is not there (an unknown parent call)."""

    status, type, code = 422, "invalid_request_error", "unprocessable"


class RateLimitedError(FairServeError):
    """Refused by a throttle; always with ``Retry-After``."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class InsufficientQuotaError(FairServeError):
    """A budget is spent: trying again does not help before its next period."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"


class UnavailableError(FairServeError):
    """No capacity: no worker, the queue is full, the wait was too long, or we are draining."""

    status, type, code = 503, "unavailable_error", "unavailable"


class UpstreamError(FairServeError):
    """Workers failed because of the call: trying it again does not help."""

    status, type, code = 502, "upstream_error", "upstream_error"


class WorkerFailedError(FairServeError):
    """The worker failed after it had begun to answer."""

    status, type, code = 502, "worker_error", "worker_failed"
