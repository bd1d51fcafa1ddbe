"""The ``x-*`` headers of an answer: the placement of the call, and the rest of its limits."""

from __future__ import annotations

from fairserve.platform.base.money import amount_text
from fairserve.platform.control.messages import Attached, Grant
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.throttling.base import LimitUse


def call_headers(
    record_id: str,
    run_id: str,
    call_id: str,
    model: str,
    attached: Attached | None,
    grant: Grant | None,
    queue_s: float | None,
    limits: LimitsInUse,
) -> dict[str, str]:
    """Return the headers that are known now: the worker after the grant, the queue time after its start.

    ``record_id`` is the ledger's id of the call, ``model`` its pool, ``attached`` its place in its run.
    """
    headers = {
        "x-request-id": record_id,
        "x-interaction-id": _safe(run_id),
        "x-call-id": _safe(call_id),
    }
    if attached is not None:
        if attached.run_rule:
            headers["x-fairserve-run-rule"] = attached.run_rule
        headers["x-fairserve-stage"] = str(attached.stage)
    if grant is not None:
        headers["x-fairserve-worker"] = _safe(grant.worker_id)
        if grant.held:
            headers["x-fairserve-held"] = "true"
    if model:
        headers["x-fairserve-model"] = _safe(model)
    if queue_s is not None:
        headers["x-fairserve-queue-ms"] = str(round(queue_s * 1000))
    headers |= limit_headers(limits)
    return headers


def limit_headers(limits: LimitsInUse) -> dict[str, str]:
    """Return ``x-ratelimit-*`` of the limit with least left, with its kind and scope.

    A quota on calls precedes the throttle's limit, which is active under overload only.
    """
    contract = limits.contract
    headers: dict[str, str] = {}
    requests, kind = contract.requests, "contract"
    if requests is None:
        requests, kind = limits.throttle, "throttle"
    if requests is not None:
        headers |= _of_limit("requests", requests, kind)
    if contract.tokens is not None:
        headers |= _of_limit("tokens", contract.tokens, "contract")
    if (budget := contract.budget) is not None:
        left = max(0, budget.limit - budget.spent - budget.held)
        headers |= {
            "x-fairserve-budget-limit": amount_text(budget.limit),
            "x-fairserve-budget-remaining": amount_text(left),
            "x-fairserve-budget-reset": _seconds(budget.reset_s),
            "x-fairserve-budget-scope": budget.scope,
        }
        if budget.soft:
            headers["x-fairserve-budget-soft-end"] = "passed"
    return headers


def _of_limit(what: str, use: LimitUse, kind: str) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{what}": str(use.limit),
        f"x-ratelimit-remaining-{what}": str(use.remaining),
        f"x-ratelimit-reset-{what}": _seconds(use.reset_s),
        f"x-fairserve-limit-{what}": f"{kind}; scope={use.scope}",
    }


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "s"


def _safe(value: str) -> str:
    """Return a header value: ids from metadata may have letters that no header can carry."""
    return value.encode("latin-1", "replace").decode("latin-1")
