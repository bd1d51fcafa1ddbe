"""Capacity check of a submitted call: control does not drain, and the model's queue is not full.

A call without capacity is rejected before the dispatcher sees it. The rejection has the load and the
state of the run as inputs; immunity of the run is not evaluated.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from fairserve.interactions.call import Call
from fairserve.interactions.tracking.run import Attachment
from fairserve.platform.base.errors import (
    FairServeError,
    RateLimitedError,
    UnavailableError,
    UnprocessableError,
)
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.background_room import fits_any
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.base import Decision, Scope

RETRY_S = 5.0


class QueueBounds(NamedTuple):
    """Bounds on the queued calls of a model."""

    calls: int
    """Calls of all clients together."""
    of_tenant: int
    of_user: int


def check_capacity(
    dispatcher: Dispatcher, call: Call, now_s: float, *, draining: bool, bounds: QueueBounds
) -> ev.Refuse | None:
    """Return the rejection of a call without capacity; None if there is capacity.

    A client that has filled its share gets that reason: the queue is not full, and others are accepted.
    Background calls have the same bounds in their own queue, and take no place in that of the others.
    """
    of_class = partial(dispatcher.queued, call.pool, background=call.background)
    waiting_of_user = of_class(call.tenant, call.user)
    waiting_of_tenant = of_class(call.tenant)
    max_queued_calls = bounds.calls
    if draining:
        decision = Decision(False, "draining", retry_after_s=RETRY_S)
    elif bounds.calls > bounds.of_user <= waiting_of_user:
        decision = _share_full("user", bounds.of_user, waiting_of_user)
    elif bounds.calls > bounds.of_tenant <= waiting_of_tenant:
        decision = _share_full("tenant", bounds.of_tenant, waiting_of_tenant)
    elif (waiting := of_class()) >= max_queued_calls:
        decision = Decision(
            False, "queue_full", limit=max_queued_calls, count=waiting, retry_after_s=RETRY_S
        )
    else:
        return None
    run = dispatcher.tracker.find(call.interaction_id, call.tenant, now_s)
    own = run is not None and run.owner == (call.tenant, call.app, call.user)
    calls, tokens = (len(run), run.tokens) if run is not None and own else (0, 0)
    attachment = Attachment(0, calls > 0, immune=False, calls=calls, tokens=tokens)
    return ev.Refuse(
        call.call_id, decision, calls > 0, _rejection_context(dispatcher, call, attachment)
    )


def check_background_room(dispatcher: Dispatcher, call: Call) -> None:
    """Raise an UnprocessableError for a background call that no worker of its model may ever get."""
    pool = dispatcher.pools.get(call.pool)
    if pool is None or not call.background:
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


def _share_full(scope: Scope, limit: int, count: int) -> Decision:
    return Decision(
        False, "queue_share_full", scope=scope, limit=limit, count=count, retry_after_s=RETRY_S
    )


def capacity_error(rejection: ev.Refuse) -> FairServeError:
    """Return the error that the API answers for a rejection of :func:`check_capacity`."""
    decision = rejection.decision
    headers = {"Retry-After": f"{RETRY_S:g}"}
    if decision.reason == "queue_share_full":
        text = (
            f"{decision.count:,} calls of this {decision.scope} wait for the model; "
            f"allowed: {decision.limit:,}"
        )
        return RateLimitedError(text, code=decision.reason, headers=headers)
    text = (
        "the server is stopping"
        if decision.reason == "draining"
        else f"{decision.count} calls are waiting already"
    )
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
