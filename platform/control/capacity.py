"""Rejections for want of capacity or of a grant: control drains, the queue is full, no such tier.

While control drains, a call is rejected before the dispatcher sees it; immunity of its run is not
evaluated then. The dispatcher decides about the queue
(:mod:`fairserve.scheduling.dispatch.queue_places`).
"""

from __future__ import annotations

import math

from fairserve.interactions.call import Call
from fairserve.interactions.tracking.run import Attachment
from fairserve.platform.base.errors import (
    FairServeError,
    InvalidRequestError,
    RateLimitedError,
    UnavailableError,
    UnprocessableError,
)
from fairserve.scheduling import events as ev
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.background_room import fits_any
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.queue_places import RETRY_S
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.base import Decision


def draining_rejection(dispatcher: Dispatcher, call: Call, now_s: float) -> ev.Refuse:
    """Return the rejection of a call that is submitted while control drains."""
    run = dispatcher.tracker.find(call.interaction_id, call.tenant, now_s)
    own = run is not None and run.owner == (call.tenant, call.app, call.user)
    calls, tokens = (len(run), run.tokens) if run is not None and own else (0, 0)
    attachment = Attachment(0, calls > 0, immune=False, calls=calls, tokens=tokens)
    decision = Decision(False, "draining", retry_after_s=RETRY_S)
    context = _rejection_context(dispatcher, call, attachment)
    return ev.Refuse(call.call_id, decision, calls > 0, context)


def check_background_room(dispatcher: Dispatcher, call: Call) -> None:
    """Raise an UnprocessableError for a background call that no worker of its model may ever get."""
    pool = dispatcher.pools.get(call.pool) if call.background else None
    if pool is None:
        return
    rooms = pool.background_rooms(call)
    if rooms and not fits_any(call, rooms):
        allowed = " or ".join(f"{tokens} tokens and {most} answers" for tokens, most in rooms)
        raise UnprocessableError(
            f"max_tokens is {call.max_output_tokens} and n is {call.samples}, beside a prompt of"
            f" {call.prompt_tokens} tokens; a background call may hold {allowed} in all, the part of a"
            " worker that such calls may fill",
            code="background_call_too_large",
            param="max_tokens",
        )


def check_tier(directory: Directory, call: Call) -> None:
    """Raise an InvalidRequestError for a priority call without a grant to its app or user."""
    if call.tier != "priority":
        return
    if directory.priority_weight(call.tenant, call.app, call.user) is None:
        raise InvalidRequestError(
            "service_tier is 'priority', which the operator has not granted to this app or user;"
            " allowed: 'auto', 'default' and 'flex'",
            param="service_tier",
            code="unsupported_parameter",
        )


def capacity_error(rejection: ev.Refuse) -> FairServeError | None:
    """Return the error that the API answers for want of capacity; None for other rejections."""
    decision = rejection.decision
    headers = {"Retry-After": f"{math.ceil(decision.retry_after_s or RETRY_S)}"}
    match decision.reason:
        case "queue_share_full":
            text = (
                f"{decision.count:,} calls of this {decision.scope} wait for the model; "
                f"allowed: {decision.limit:,}"
            )
            return RateLimitedError(text, code=decision.reason, headers=headers)
        case "queue_full":
            text = f"{decision.count} calls are waiting already"
        case "draining":
            text = "the server is stopping"
        case _:
            return None
    return UnavailableError(text, code=decision.reason, headers=headers)


def _rejection_context(
    dispatcher: Dispatcher, call: Call, attachment: Attachment
) -> RejectionContext | None:
    """Return the inputs of the decision; None for an unknown model, which has no load."""
    pool = dispatcher.pools.get(call.pool)
    if pool is None:
        return None
    profile = dispatcher.directory.profile(call.app)
    return pool.rejection_context(call, dispatcher.system, profile, attachment, asked=False)
