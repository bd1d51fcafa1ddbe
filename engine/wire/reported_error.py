"""Classify the errors that a worker reports, by their status and structured codes.

The text decides nothing: a validation error repeats names from the request, such as a field ``quota``.
A worker that has sent status 200 may report the status in ``code``, or a type with a known meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from fairserve.engine.wire.base import WorkerRejectedError, WorkerStreamError

Verdict = Literal["rejected", "account", "busy", "failed"]
"""``rejected``: the request is wrong. ``account``: the operator's key, quota or account is. ``busy``: it
accepts no call now, whatever its content. ``failed``: anything else."""

_STATUSES: Mapping[int, Verdict] = MappingProxyType(
    {
        **dict.fromkeys((401, 402, 403, 407), "account"),
        **dict.fromkeys((408, 425, 429, 503), "busy"),
    }
)
_CODES: Mapping[str, Verdict] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "access_terminated",
                "account_deactivated",
                "api_key_invalid",
                "authentication_error",
                "authenticationerror",
                "billing_error",
                "billing_hard_limit_reached",
                "billing_not_active",
                "insufficient_quota",
                "invalid_api_key",
                "payment_required",
                "permission_error",
                "unauthenticated",
                "unauthorized",
            ),
            "account",
        ),
        **dict.fromkeys(
            (
                "overloaded_error",
                "rate_limit_error",
                "rate_limit_exceeded",
                "ratelimiterror",
                "serviceunavailableerror",
                "unavailable",  # of our worker: it drains, and hands back its waiting calls
                "unavailable_error",
            ),
            "busy",
        ),
    }
)
_REJECTIONS = frozenset({"invalid_request_error", "badrequesterror"})
"""Types that reject the request itself, in our worker and in vLLM."""
_STATUS = re.compile(r"[45]\d\d")


def error_object(parsed: Any) -> dict[str, Any] | None:
    """Return the error in a worker's object: message, type, param and code; None if it has none.

    vLLM wraps it in ``error``, older versions send it as it is.
    """
    inner = parsed.get("error", parsed) if isinstance(parsed, dict) else None
    if isinstance(inner, str):
        return {"message": inner}
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return None
    allowed = {"message": str, "type": str, "param": str, "status": str, "code": str | int}
    return {
        name: inner[name] for name, kind in allowed.items() if isinstance(inner.get(name), kind)
    }


def verdict_of(error: Mapping[str, Any], status: int | None = None) -> Verdict:
    """Return the class of an error; ``status`` is that of its answer, or None after status 200."""
    codes = {str(error.get(name, "")).lower() for name in ("code", "type", "status")}
    found = {_CODES.get(code) for code in codes}
    if "account" in found and status != 429:
        return "account"
    if status is None:
        if "busy" in found:
            return "busy"
        status = status_in(error)
    if status in _STATUSES:
        return _STATUSES[status]
    return "rejected" if 400 <= status < 500 else "failed"


def status_in(error: Mapping[str, Any]) -> int:
    """Return the status that an error names after status 200: in its code, or by its type."""
    code = str(error.get("code", ""))
    if _STATUS.fullmatch(code):
        return int(code)
    return 400 if str(error.get("type", "")).lower() in _REJECTIONS else 500


def reported(error: Mapping[str, Any]) -> WorkerStreamError | WorkerRejectedError:
    """Return the exception for an error that a worker sent after status 200, with the worker's texts."""
    verdict = verdict_of(error)
    message = str(error["message"])
    if verdict == "rejected":
        return WorkerRejectedError(status_in(error), dict(error))
    text = f"it reported: {message}"
    if verdict == "account":
        return WorkerStreamError(text, cause="unknown")
    return WorkerStreamError(text, cause=verdict, client_message=message)
