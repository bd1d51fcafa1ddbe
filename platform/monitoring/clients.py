"""Views of the clients of the last half hour: a paged list, and details of one.

Cost of a reading: that of the shares (:mod:`fairserve.platform.monitoring.client_shares`), in turns of
the event loop and a thread; of each of its pages: O(clients) to select and rank, plus a view for each
client shown. A tenant's reading has no data of other tenants: shares are among its own clients.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fairserve.platform.control.messages import Client
from fairserve.platform.control.service import ControlService
from fairserve.platform.monitoring.activity import BUCKET_S, BUCKETS, Activity
from fairserve.platform.monitoring.activity_bucket import ClosedBucket
from fairserve.platform.monitoring.client_shares import ClientShares
from fairserve.platform.monitoring.client_views import (
    MAX_CALLS,
    ClientPage,
    ClientSort,
    ClientView,
)
from fairserve.platform.monitoring.entitled import DemandShares
from fairserve.platform.monitoring.schemas import ClientOut, WeightsOut, call_out, limits_out


class _Seen(NamedTuple):
    """A client with the figures for selection and ranking."""

    owner: Client
    service: tuple[float, float, float]
    live_calls: tuple[int, int]


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


class ClientReading:
    """The clients of the last half hour, of one or all tenants, at the time of their reading."""

    def __init__(
        self,
        control: ControlService,
        activity: Activity,
        tenant: str | None,
        found: Sequence[_Seen],
        shares: DemandShares,
    ) -> None:
        self._control = control
        self._activity = activity
        self._tenant = tenant
        self._found = found
        self._shares = shares

    def page(
        self,
        *,
        limit: int,
        offset: int = 0,
        sort: ClientSort = "service_5m",
        query: str = "",
        named: Collection[str] = (),
        app: str | None = None,
    ) -> ClientPage:
        """Return a page of the clients.

        ``app`` selects those of an app. ``query`` is a substring of an id, ignoring case; clients of
        tenants and apps in ``named`` match, too. The order is descending, for ties and ``name`` by
        tenant, app and user. Shares are among all clients of the reading.
        """
        found = self._found
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
        items = [self._view(seen) for seen in first[offset:]]
        return ClientPage(items, len(found), limit, offset)

    def queues(self) -> dict[str, int]:
        """Return the queued calls by model."""
        return self._activity.queues(self._tenant)

    def one(self, owner: Client) -> ClientView | None:
        """Return one client; None if it had no call in the last half hour."""
        return next((self._view(seen) for seen in self._found if seen.owner == owner), None)

    def _view(self, seen: _Seen) -> ClientView:
        owner, state = seen.owner, self._control.client_state(seen.owner)
        shares = self._shares
        tenant, app, user = owner
        # A forecast that is corrected in a later bucket than it was counted lies beyond its window.
        one, five, thirty = (max(0.0, each) for each in seen.service)
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


class Clients:
    """The clients of the last half hour, for use on the event loop. The clocks are control's."""

    def __init__(
        self,
        control: ControlService,
        activity: Activity,
        client_shares: ClientShares,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._control = control
        self._activity = activity
        self._client_shares = client_shares
        self._clock = clock
        self._wall = wall

    async def read(self, tenant: str | None) -> ClientReading:
        """Return the clients of one or all tenants."""
        activity = self._activity
        activity.settle(self._clock())
        shares = await self._client_shares.of_all(tenant)
        found = [
            _Seen(owner, activity.service(owner), activity.live_calls(owner))
            for owner in activity.clients()
            if tenant is None or owner[0] == tenant
        ]
        return ClientReading(self._control, activity, tenant, found, shares)

    async def one(
        self, tenant: str, app: str, user: str, *, within: str | None = None
    ) -> ClientOut | None:
        """Return the details of a client; None if it had no call in the last half hour.

        Its shares are among the clients of the tenant ``within``, or all.
        """
        owner = (tenant, app, user)
        found = (await self.read(within)).one(owner)
        if found is None:
            return None
        now_s, now_at = self._clock(), self._wall()
        buckets = self._activity.buckets()
        last = self._activity.number
        numbers = range(last - BUCKETS, last)
        closed = [buckets.get(number) for number in numbers]
        state = self._control.client_state(owner)
        live = found.queued_calls or found.running_calls
        calls = self._control.client_calls(owner, MAX_CALLS) if live else []
        return ClientOut(
            client=found,
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


def _service(bucket: ClosedBucket | None, owner: Client) -> float | None:
    """Return the service of a client in a bucket; None if unknown."""
    if bucket is None:
        return 0.0
    unnamed = bucket.whole.clients > len(bucket.clients)
    return bucket.clients.get(owner, None if unnamed else 0.0)
