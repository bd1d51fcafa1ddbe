"""The ``x-*`` headers of an answer: where the call was placed, and what is left of the limit."""

from __future__ import annotations

from fairserve.interactions.call import Call
from fairserve.platform.control.messages import Grant
from fairserve.throttling.base import LimitUse


def call_headers(
    record_id: str,
    run_id: str,
    call_id: str,
    call: Call,
    grant: Grant | None,
    queue_s: float | None,
    limits: LimitUse | None,
) -> dict[str, str]:
    """What is known now: the worker since the grant, the queue time since the worker began.

    ``record_id`` is the ledger's id of the call.
    """
    headers = {
        "x-request-id": record_id,
        "x-interaction-id": _safe(run_id),
        "x-call-id": _safe(call_id),
    }
    stage = call.stage if grant is None else grant.stage
    if stage:
        headers["x-fairserve-stage"] = str(stage)
    if grant is not None:
        headers["x-fairserve-worker"] = _safe(grant.worker_id)
    if call.pool:
        headers["x-fairserve-model"] = _safe(call.pool)
    if queue_s is not None:
        headers["x-fairserve-queue-ms"] = str(round(queue_s * 1000))
    if limits is not None:
        headers["x-ratelimit-limit-requests"] = str(limits.limit)
        headers["x-ratelimit-remaining-requests"] = str(limits.remaining)
        headers["x-ratelimit-reset-requests"] = (
            f"{limits.reset_s:.3f}".rstrip("0").rstrip(".") + "s"
        )
    return headers


def _safe(value: str) -> str:
    """A header value: ids from metadata may have letters that no header can carry."""
    return value.encode("latin-1", "replace").decode("latin-1")
