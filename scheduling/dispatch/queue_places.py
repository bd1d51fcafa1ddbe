"""Places of a queue: who has them, and who leaves a full queue for an arrival.

A queue is bounded, and a tenant and a user of an app have a maximum part of it. If the queue, or the
part of the arrival's tenant, is full, the arrival takes the place of the newest queued call of whoever
has most (:class:`~fairserve.interactions.tracking.shares.Shares`), and that call is rejected; the
arrival itself is rejected only if its owner has its share. Of a user, calls that begin a run leave
before calls of runs in progress, but none for a call of its own run; a call that was at a worker before
never leaves.

Weakness: a call that leaves has waited in vain. Calls whose worker failed are queued again beyond the
bound, which the calls of one worker can exceed at most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from fairserve.interactions.call import Call
from fairserve.interactions.tracking.shares import Owner, Shares
from fairserve.scheduling.dispatch.queued_call import QueuedCall
from fairserve.throttling.base import Decision, Scope

RETRY_S = 5.0
"""Seconds after which a rejected client may retry at the earliest."""


class QueueBounds(NamedTuple):
    """Bounds on the queued calls of a model, for ordinary and for background calls each."""

    calls: int
    """Calls of all clients together."""
    of_tenant: int
    of_user: int
    """Calls of a user of an app."""


class QueueRejection(NamedTuple):
    """The rejection for want of a place."""

    decision: Decision
    displaced: str | None
    """The queued call that is rejected for the arrival; None: the arrival is rejected."""


class QueuePlaces:
    """The owners of the queued calls of one class. Each operation is O(log clients), amortised."""

    def __init__(self) -> None:
        self._shares: Shares[str] = Shares(2, newest_first=True)

    def count(self, *of: str) -> int:
        """Return the queued calls: all, of a tenant, of its app, or of a user of that app."""
        return self._shares.count(of) if of else len(self._shares)

    def enter(self, live: QueuedCall) -> None:
        """Count a queued call."""
        rank = None if live.call.avoid else int(live.under_way)
        self._shares.enter(_owner(live.call), live.call.call_id, rank)

    def leave(self, call: Call) -> None:
        """Remove a queued call."""
        self._shares.leave(call.call_id)

    def rejection(
        self, call: Call, bounds: QueueBounds, *, under_way: bool, retry_after_s: float = RETRY_S
    ) -> QueueRejection | None:
        """Return which call is rejected if this one is queued; None if there is a place. No change.

        ``under_way``: its run is in progress.
        """
        if len(self._shares) < min(bounds):
            return None
        owner = _owner(call)
        full: tuple[str, ...] = ()
        if bounds.calls > bounds.of_user <= self.count(*owner):
            full, decision = owner, _share_full("user", bounds.of_user, self.count(*owner))
        elif bounds.calls > bounds.of_tenant <= self.count(call.tenant):
            full = owner[:1]
            decision = _share_full("tenant", bounds.of_tenant, self.count(*full))
        elif (waiting := self.count()) >= bounds.calls:
            decision = Decision(False, "queue_full", limit=bounds.calls, count=waiting)
        else:
            return None
        decision = replace(decision, retry_after_s=retry_after_s)
        if not decision.count:
            return QueueRejection(decision, None)  # a queue without places
        return QueueRejection(decision, self._shares.displaced_by(owner, int(under_way), full))


def _share_full(scope: Scope, limit: int, count: int) -> Decision:
    return Decision(False, "queue_share_full", scope=scope, limit=limit, count=count)


def _owner(call: Call) -> Owner:
    return call.tenant, call.app, call.user
