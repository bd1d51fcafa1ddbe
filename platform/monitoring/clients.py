"""Views of the clients of the last half hour: a paged list, and details of one.

Cost of a page: O(clients) to select and rank, plus a view for each client shown. A tenant's page has no
data of other tenants: shares are among the tenant's own clients.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from fairserve.platform.control.messages import Client
from fairserve.platform.control.port import ControlPort
from fairserve.platform.monitoring.activity import BUCKET_S, BUCKETS, Activity
from fairserve.platform.monitoring.activity_bucket import ClosedBucket
from fairserve.platform.monitoring.client_views import (
    MAX_CALLS,
    ClientPage,
    ClientSort,
    ClientView,
)
from fairserve.platform.monitoring.entitled import DemandShares, shares_by_demand
from fairserve.platform.monitoring.schemas import ClientOut, WeightsOut, call_out, limits_out


class _Seen(NamedTuple):
    """A client with the figures for selection and ranking."""

    owner: Client
    service: tuple[float, float, float]
    live_calls: tuple[int, int]

    @property
    def active(self) -> bool:
        """Return whether the client was served in the last five minutes or has live calls."""
        return self.service[1] > 0 or self.live_calls != (0, 0)


_BY: dict[ClientSort, Callable[[Activity, _Seen], float]] = {
    "service_1m": lambda activity, seen: seen.service[0],
    "service_5m": lambda activity, seen: seen.service[1],
    "service_30m": lambda activity, seen: seen.service[2],
    "queued_calls": lambda activity, seen: seen.live_calls[0],
    "running_calls": lambda activity, seen: seen.live_calls[1],
    "refused_calls": lambda activity, seen: activity.refusals(seen.owner),
    "name": lambda activity, seen: 0,
}
"""Sort keys, descending; ties and ``name`` are sorted by tenant, app and user."""


class Clients:
    """The clients of the last half hour, for use on the event loop. The clocks are control's."""

    def __init__(
        self,
        control: ControlPort,
        activity: Activity,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._control = control
        self._activity = activity
        self._clock = clock
        self._wall = wall

    def page(
        self,
        tenant: str | None,
        *,
        limit: int,
        offset: int = 0,
        sort: ClientSort = "service_5m",
        query: str = "",
        named: Collection[str] = (),
        app: str | None = None,
    ) -> ClientPage:
        """Return a page of the clients of the last half hour, of one or all tenants.

        ``app`` selects those of an app. ``query`` is a substring of an id, ignoring case; clients of
        tenants and apps in ``named`` match, too. The order is descending, for ties and ``name`` by
        tenant, app and user. Shares are among the clients of the tenant, or all.
        """
        self._activity.settle(self._clock())
        found = self._seen(tenant)
        shares = self._shares(found)
        if app is not None:
            found = [seen for seen in found if seen.owner[1] == app]
        if query:
            word, known = query.casefold(), frozenset(named)
            found = [
                seen
                for seen in found
                if not known.isdisjoint(seen.owner[:2])
                or any(word in part.casefold() for part in seen.owner)
            ]
        value, activity = _BY[sort], self._activity
        first = heapq.nsmallest(
            offset + limit, found, key=lambda seen: (-value(activity, seen), seen.owner)
        )
        items = [self._view(seen, shares) for seen in first[offset:]]
        return ClientPage(items, len(found), limit, offset)

    def one(
        self, tenant: str, app: str, user: str, *, within: str | None = None
    ) -> ClientOut | None:
        """Return the details of a client; None if it had no call in the last half hour.

        Its shares are among the clients of the tenant ``within``, or all.
        """
        owner = (tenant, app, user)
        self._activity.settle(self._clock())
        found = self._seen(within)
        seen = next((each for each in found if each.owner == owner), None)
        if seen is None:
            return None
        now_s, now_at = self._clock(), self._wall()
        buckets = self._activity.buckets()
        last = self._activity.number
        numbers = range(last - BUCKETS, last)
        closed = [buckets.get(number) for number in numbers]
        state = self._control.client_state(owner)
        calls = self._control.client_calls(owner, MAX_CALLS) if any(seen.live_calls) else []
        return ClientOut(
            client=self._view(seen, self._shares(found)),
            weights=WeightsOut(
                tenant=state.tenant_weight, app=state.app_weight, user=state.user_weight
            ),
            bucket_s=BUCKET_S,
            at=[now_at - now_s + (number + 1) * BUCKET_S for number in numbers],
            service=[_service(bucket, owner) for bucket in closed],
            refused=[0 if each is None else each.refused.get(owner, 0) for each in closed],
            levels=self._control.client_levels(owner),
            limits=limits_out(self._control.limits_in_use(*owner)),
            calls=[call_out(call) for call in calls],
        )

    def queues(self, tenant: str | None) -> dict[str, int]:
        """Return the queued calls of one or all tenants by model."""
        return self._activity.queues(tenant)

    # --- parts ------------------------------------------------------------------------------------

    def _seen(self, tenant: str | None) -> list[_Seen]:
        activity = self._activity
        return [
            _Seen(owner, activity.service(owner), activity.live_calls(owner))
            for owner in activity.clients()
            if tenant is None or owner[0] == tenant
        ]

    def _shares(self, found: Iterable[_Seen]) -> DemandShares:
        """Return the shares of the last five minutes, in the unit of the system in force."""
        active = {seen.owner: seen.service[1] for seen in found if seen.active}
        waiting = {seen.owner for seen in found if seen.live_calls[0]}
        return shares_by_demand(active, waiting, self._control.entitlements)

    def _view(self, seen: _Seen, shares: DemandShares) -> ClientView:
        owner, state = seen.owner, self._control.client_state(seen.owner)
        tenant, app, user = owner
        one, five, thirty = seen.service
        queued, running = seen.live_calls
        return ClientView(
            tenant=tenant,
            app=app,
            user=user,
            service_1m=one,
            service_5m=five,
            service_30m=thirty,
            service_share=shares.received.get(owner, 0.0) if shares.any_served else None,
            entitled_share=shares.entitled.get(owner),
            weight=state.weight,
            queued_calls=queued,
            queued_by_model=self._activity.queued(owner),
            running_calls=running,
            refused_calls=self._activity.refusals(owner),
            blocked=state.blocked,
            user_rpm=state.user_rpm,
            app_rpm=state.app_rpm,
            counter=state.counter,
        )


def _service(bucket: ClosedBucket | None, owner: Client) -> float | None:
    """Return the service of a client in a bucket; None if unknown."""
    if bucket is None:
        return 0.0
    unnamed = bucket.whole.clients > len(bucket.clients)
    return bucket.clients.get(owner, None if unnamed else 0.0)
