"""The errors that clients of the OpenAI API get when control rejects a call.

The error names the kind of limit (a quota, or the throttle's, which is active under overload only), its
scope, limit and count, and how far waiting helps: ``certain`` where only this user uses the limit,
``best_effort`` where others may use what becomes free, ``no`` where the money is spent.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fairserve.engine.wire.base import WorkerRejectedError
from fairserve.platform.base.errors import (
    FairServeError,
    InsufficientQuotaError,
    InvalidRequestError,
    PermissionDeniedError,
    RateLimitedError,
)
from fairserve.platform.control.messages import USER_BLOCKED, RejectCall
from fairserve.throttling.base import Decision

RETRY_HEADER = "x-fairserve-retry"
_NAME = re.compile(r"[A-Za-z_][\w.\[\]-]{0,99}")

_SPENT = {
    "contract_budget": "the budget of this {scope} is spent",
    "contract_soft_budget": "the budget of this {scope} is beyond its soft limit, and no new run begins",
}
_TEXTS = {
    "contract_rpm": "{count} calls of this {scope} in {window} s; the limit is {limit}",
    "overloaded_new_users_limit": "{count} new users of this {scope} in {window} s; the limit is"
    " {limit} while the workers are overloaded",
    "contract_tpm": "{count} tokens of this {scope} in {window} s, with the longest answer to this"
    " call; the limit is {limit}",
    "contract_parallel": "{count} parallel calls of this {scope}; the limit is {limit}",
    "contract_budget_held": "running calls hold the rest of the budget of this {scope}",
    "contract_too_many_users": "too many users have a budget in this period",
}


class RejectedByWorkerError(FairServeError):
    """A worker rejected the request itself, such as an unsupported field: its answer, unchanged."""

    def __init__(self, rejected: WorkerRejectedError) -> None:
        error = rejected.error
        super().__init__(
            str(error.get("message") or "the worker rejected the call"),
            param=_name(error.get("param")),
            code=_name(error.get("code")) or InvalidRequestError.code,
        )
        self.status = rejected.status
        self.type = _name(error.get("type")) or InvalidRequestError.type


def rejection_error(rejected: RejectCall, size_field: str = "max_tokens") -> FairServeError:
    """Return the error that names the limit, its window, and the time to wait.

    ``size_field`` is the field that makes the call smaller.
    """
    decision = rejected.decision
    match decision.reason:
        case "user_blocked":
            return PermissionDeniedError(USER_BLOCKED, code="user_blocked")
        case "model_not_allowed":
            return model_not_allowed()
        case "contract_call_too_large":
            return InvalidRequestError(
                f"prompt and longest answer have {decision.count} tokens; a minute of this"
                f" {decision.scope} allows {decision.limit}",
                param=size_field,
                code="tokens_over_limit",
            )
    if decision.reason in _SPENT:
        return _quota_spent(decision)
    overloaded = decision.reason.startswith("overloaded")
    retry_s = max(1, math.ceil(decision.retry_after_s or 1.0))
    return RateLimitedError(
        f"{'Overloaded' if overloaded else 'Rate limit exceeded'} ({decision.reason})"
        f"{_limit_text(decision, overloaded)}. Retry in {retry_s} s.",
        code="overloaded" if overloaded else "rate_limit_exceeded",
        headers=_headers(decision, retry_s, "certain" if decision.certain else "best_effort"),
        details=_details(decision, retry_s, "certain" if decision.certain else "best_effort"),
    )


def model_not_allowed() -> PermissionDeniedError:
    """Return the error of a model outside the app's quotas."""
    return PermissionDeniedError(
        "the contract does not allow this model; GET /v1/models lists those allowed",
        param="model",
        code="model_not_allowed",
    )


def _quota_spent(decision: Decision) -> InsufficientQuotaError:
    """Return the error of a spent budget, which client libraries do not retry.

    ``Retry-After`` is the end of the budget's period.
    """
    retry_s = max(1, math.ceil(decision.retry_after_s or 1.0))
    text = _SPENT[decision.reason].format(scope=decision.scope)
    return InsufficientQuotaError(
        f"Budget spent ({decision.reason}): {text}. The next period begins in {retry_s} s.",
        headers=_headers(decision, retry_s, "no") | {"x-should-retry": "false"},
        details=_details(decision, retry_s, "no"),
    )


def _limit_text(decision: Decision, overloaded: bool) -> str:
    scope = decision.scope or "caller"
    if decision.reason in _TEXTS:
        window = f"{decision.window_s:g}" if decision.window_s is not None else ""
        return ": " + _TEXTS[decision.reason].format(
            scope=scope, count=decision.count, limit=decision.limit, window=window
        )
    if decision.limit is None or decision.window_s is None:
        return ""
    return (
        f": {decision.count} calls of this {scope} in {decision.window_s:g} s; the limit is"
        f" {decision.limit}{' while the workers are overloaded' if overloaded else ''}"
    )


def _headers(decision: Decision, retry_s: int, retry: str) -> dict[str, str]:
    return {
        "Retry-After": str(retry_s),
        "x-fairserve-refusal": decision.reason,
        RETRY_HEADER: retry,
    }


def _details(decision: Decision, retry_s: int, retry: str) -> dict[str, Any]:
    return {
        "kind": "contract" if decision.reason.startswith("contract_") else "throttle",
        "reason": decision.reason,
        "scope": decision.scope,
        "limit": decision.limit,
        "count": decision.count,
        "window_s": decision.window_s,
        "retry_after_s": retry_s,
        "retry": retry,
    }


def _name(value: Any) -> str | None:
    """Return a name of a field, a code or a type in a worker's error; nothing else is passed on."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None
