"""Whether control has room for a call: it is not about to stop, and the model's queue is not full.

A call for which there is none is turned away before the dispatcher sees it. That is a refusal, too, with
the load and the run's state as they are; nobody asked whether the run was immune.
"""

from __future__ import annotations

from fairserve.interactions.call import Call
from fairserve.interactions.run import Attachment
from fairserve.platform.errors import UnavailableError
from fairserve.scheduling import events as ev
from fairserve.scheduling.circumstances import Circumstances
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.throttling.base import Decision

RETRY_S = 5.0


def no_room(
    dispatcher: Dispatcher, call: Call, now_s: float, *, draining: bool, max_queued_calls: int
) -> ev.Refuse | None:
    """The refusal of a call for which there is no room; None if there is."""
    if draining:
        decision = Decision(False, "draining", retry_after_s=RETRY_S)
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
        call.call_id, decision, calls > 0, _circumstances(dispatcher, call, attachment)
    )


def turned_away(refusal: ev.Refuse) -> UnavailableError:
    """What its client is told."""
    decision = refusal.decision
    text = (
        "the server is stopping"
        if decision.reason == "draining"
        else f"{decision.count} calls are waiting already"
    )
    return UnavailableError(text, code=decision.reason, headers={"Retry-After": f"{RETRY_S:g}"})


def _circumstances(
    dispatcher: Dispatcher, call: Call, attachment: Attachment
) -> Circumstances | None:
    """None for a model that nobody has named before: it has no load."""
    pool = dispatcher.pools.get(call.pool)
    if pool is None:
        return None
    profile = dispatcher.directory.profile(call.app)
    return pool.circumstances(call, dispatcher.system, profile, attachment, asked=False)
