"""Refusals and worker errors, as the answers that clients of the OpenAI API understand."""

from __future__ import annotations

import math
from typing import Any

from fairserve.engine.base import WorkerRejectedError
from fairserve.platform.control.messages import RefuseCall
from fairserve.platform.errors import (
    FairServeError,
    InvalidRequestError,
    PermissionDeniedError,
    RateLimitedError,
)


class PassedOnError(FairServeError):
    """A worker refused the request itself (an unsupported field, say): its answer, as it came."""

    def __init__(self, rejected: WorkerRejectedError) -> None:
        error = rejected.error
        super().__init__(
            str(error.get("message") or "the worker refused the call"),
            param=_text(error.get("param")),
            code=_text(error.get("code")) or InvalidRequestError.code,
        )
        self.status = rejected.status
        self.type = _text(error.get("type")) or InvalidRequestError.type


def refusal(refused: RefuseCall) -> FairServeError:
    """Why, which limit, the window, and when to come back."""
    decision = refused.decision
    if decision.reason == "user_blocked":
        return PermissionDeniedError("an operator has blocked this user", code="user_blocked")
    overloaded = decision.reason.startswith("overloaded")
    who = f"this {decision.scope}" if decision.scope else "the caller"
    text = f"Refused ({decision.reason})"
    if decision.limit is not None and decision.window_s is not None:
        text += (
            f": call number {decision.count} of {who} within {decision.window_s:g} s;"
            f" allowed: {decision.limit}"
        )
        if overloaded:
            text += " while the workers are overloaded"
    retry_s = max(1, math.ceil(decision.retry_after_s or 1.0))
    headers = {"Retry-After": str(retry_s), "x-fairserve-refusal": decision.reason}
    return RateLimitedError(
        f"{text}. Retry after {retry_s} s.",
        code="overloaded" if overloaded else "rate_limit_exceeded",
        headers=headers,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
