"""Whether control has room for a call: it is not about to stop, and the model's queue is not full.

A call for which there is none is turned away before the dispatcher sees it. That is a refusal, too, with
the load and the run's state as they are; nobody asked whether the run was immune.
"""

from __future__ import annotations

from typing import NamedTuple

from fairserve.interactions.call import Call
from fairserve.interactions.run import Attachment
from fairserve.platform.base.errors import FairServeError, RateLimitedError, UnavailableError
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.base import Decision, Scope

RETRY_S = 5.0


class QueueBounds(NamedTuple):
    """How many calls may wait for a model."""

    calls: int
    """Calls of all clients together."""
    of_tenant: int
    of_user: int


def check_capacity(
    dispatcher: Dispatcher, call: Call, now_s: float, *, draining: bool, bounds: QueueBounds
) -> ev.Refuse | None:
    """The refusal of a call for which there is no room; None if there is.

    Who has filled a share of the queue hears of that: the queue is not full, and others get in.
    """
    waiting_of_user = dispatcher.queued(call.pool, call.tenant, call.user)
    waiting_of_tenant = dispatcher.queued(call.pool, call.tenant)
    max_queued_calls = bounds.calls
    if draining:
        decision = Decision(False, "draining", retry_after_s=RETRY_S)
    elif bounds.calls > bounds.of_user <= waiting_of_user:
        decision = _share_full("user", bounds.of_user, waiting_of_user)
    elif bounds.calls > bounds.of_tenant <= waiting_of_tenant:
        decision = _share_full("tenant", bounds.of_tenant, waiting_of_tenant)
    elif (waiting := dispatcher.queued(call.pool)) >= max_queued_calls:
        decision = Decision(
            False, "queue_full", limit=max_queued_calls, count=waiting, retry_after_s=RETRY_S
        )
    else:
        return None
    run = dispatcher.tracker.find(call.interaction_id, now_s)
    own = run is not None and run.owner == (call.tenant, call.app, call.user)
    calls, tokens = (len(run), run.tokens) if run is not None and own else (0, 0)
    attachment = Attachment(0, calls > 0, immune=False, calls=calls, tokens=tokens)
    return ev.Refuse(
        call.call_id, decision, calls > 0, _rejection_context(dispatcher, call, attachment)
    )


def _share_full(scope: Scope, limit: int, count: int) -> Decision:
    return Decision(
        False, "queue_share_full", scope=scope, limit=limit, count=count, retry_after_s=RETRY_S
    )


def capacity_error(refusal: ev.Refuse) -> FairServeError:
    """What its client is told."""
    decision = refusal.decision
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
    """None for a model that nobody has named before: it has no load."""
    pool = dispatcher.pools.get(call.pool)
    if pool is None:
        return None
    profile = dispatcher.directory.profile(call.app)
    return pool.rejection_context(call, dispatcher.system, profile, attachment, asked=False)
