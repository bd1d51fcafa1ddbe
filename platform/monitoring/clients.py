"""The clients of the last half hour, as a list and one by one: read only, on the event loop.

Cost of a page: O(clients) to choose and to weigh them, and what one client costs for each that is shown.
A tenant's page says nothing of other tenants: its shares are those among the tenant's own clients.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from fairserve.interactions.call import owner_path
from fairserve.platform.control.entitlement import typical_service
from fairserve.platform.control.live_calls import LiveCalls
from fairserve.platform.monitoring.activity import BUCKET_S, BUCKETS, Activity
from fairserve.platform.monitoring.activity_bucket import Client, ClosedBucket
from fairserve.platform.monitoring.client_views import (
    MAX_CALLS,
    CallView,
    ClientDetail,
    ClientPage,
    ClientSort,
    ClientView,
    LevelView,
)
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.scheduling.level_weights import entitled_shares


class _Seen(NamedTuple):
    """A client with what is asked of every one."""

    owner: Client
    service: tuple[float, float, float]
    under_way: tuple[int, int]

    @property
    def active(self) -> bool:
        """Served in the last five minutes, or with calls under way."""
        return self.service[1] > 0 or self.under_way != (0, 0)


class _Shares(NamedTuple):
    """Parts of the active clients' service that each received, and that each is entitled to."""

    received: dict[Client, float]
    """Empty where nobody was served."""
    entitled: dict[Client, float]


_BY: dict[ClientSort, Callable[[Activity, _Seen], float]] = {
    "service_1m": lambda activity, seen: seen.service[0],
    "service_5m": lambda activity, seen: seen.service[1],
    "service_30m": lambda activity, seen: seen.service[2],
    "queued_calls": lambda activity, seen: seen.under_way[0],
    "running_calls": lambda activity, seen: seen.under_way[1],
    "refused_calls": lambda activity, seen: activity.refusals(seen.owner),
    "name": lambda activity, seen: 0,
}
"""Descending; ties, and ``name``, by tenant, app and user."""


class Clients:
    """Asked on the event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        activity: Activity,
        calls: LiveCalls,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._dispatcher = dispatcher
        self._activity = activity
        self._calls = calls
        self._clock = clock
        self._wall = wall

    def page(
        self,
        tenant: str | None,
        *,
        limit: int,
        offset: int,
        sort: ClientSort,
        query: str,
        named: Collection[str],
    ) -> ClientPage:
        """A tenant's clients, or all; ``query`` is a part of an id in whatever case, ``named`` are ids
        of tenants and apps that fit, too.
        """
        self._activity.settle(self._clock())
        found = self._seen(tenant)
        shares = self._shares(found)
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

    def one(self, owner: Client, *, within: str | None) -> ClientDetail | None:
        """A client with everything; None if it is not one of the last half hour.

        Its shares are those among the clients of the tenant ``within``, or of all.
        """
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
        of_tenant, of_app, of_user = self._dispatcher.directory.weights(*owner)
        return ClientDetail(
            client=self._view(seen, self._shares(found)),
            tenant_weight=of_tenant,
            app_weight=of_app,
            user_weight=of_user,
            bucket_s=BUCKET_S,
            at=[now_at - now_s + (number + 1) * BUCKET_S for number in numbers],
            service=[_service(bucket, owner) for bucket in closed],
            refused=[0 if each is None else each.refused.get(owner, 0) for each in closed],
            levels=self._levels(owner),
            limits=self._dispatcher.limits_in_use(owner, now_s, now_at),
            calls=self._under_way(owner, now_s, now_at),
        )

    # --- parts ------------------------------------------------------------------------------------

    def _seen(self, tenant: str | None) -> list[_Seen]:
        activity = self._activity
        return [
            _Seen(owner, activity.service(owner), activity.under_way(owner))
            for owner in activity.clients()
            if tenant is None or owner[0] == tenant
        ]

    def _shares(self, found: Iterable[_Seen]) -> _Shares:
        """Return shares of the last five minutes, in the unit of the system in force."""
        active = {seen.owner: seen.service[1] for seen in found if seen.active}
        typical = typical_service(self._dispatcher, {owner[1] for owner in active})
        counted = {owner: service / typical[owner[1]] for owner, service in active.items()}
        total = sum(counted.values())
        received = {owner: each / total for owner, each in counted.items()} if total > 0 else {}
        weights = {owner: self._dispatcher.directory.weights(*owner) for owner in active}
        return _Shares(received, entitled_shares(weights, self._dispatcher.levels))

    def _view(self, seen: _Seen, shares: _Shares) -> ClientView:
        directory, owner = self._dispatcher.directory, seen.owner
        tenant, app, user = owner
        one, five, thirty = seen.service
        queued, running = seen.under_way
        weight = directory.weight(*owner)
        limits = directory.limits(app, tenant, user)
        return ClientView(
            tenant=tenant,
            app=app,
            user=user,
            service_1m=one,
            service_5m=five,
            service_30m=thirty,
            service_share=shares.received.get(owner, 0.0) if shares.received else None,
            entitled_share=shares.entitled.get(owner),
            weight=weight,
            queued_calls=queued,
            running_calls=running,
            refused_calls=self._activity.refusals(owner),
            blocked=directory.blocked(tenant, user),
            user_rpm=limits.user_rpm,
            app_rpm=limits.app_rpm,
            counter=self._counter(owner),
        )

    def _counter(self, owner: Client) -> float | None:
        path = owner_path(*owner, self._dispatcher.levels(owner[0]))
        above = []
        for pool in self._dispatcher.pools.values():
            least = pool.feeder.least_counter(path[:-1])
            counter = None if least is None else pool.feeder.counter(path)
            if least is not None and counter is not None:
                above.append(counter - least)
        return max(above, default=None)

    def _levels(self, owner: Client) -> list[LevelView]:
        path = owner_path(*owner, self._dispatcher.levels(owner[0]))
        return [
            LevelView(
                model=model,
                path=path[:length],
                counter=pool.feeder.counter(path[:length]),
                least_counter=pool.feeder.least_counter(path[: length - 1]),
                credits=dict(pool.router.credits(path[:length])),
            )
            for model, pool in self._dispatcher.pools.items()
            for length in range(1, len(path) + 1)
        ]

    def _under_way(self, owner: Client, now_s: float, now_at: float) -> list[CallView]:
        if not any(self._activity.under_way(owner)):
            return []
        found = []
        for live in self._calls:
            if live.owner == owner:
                record = live.record("completed", now_s=now_s, ended_at=now_at)
                found.append(CallView("queued" if live.worker_id is None else "running", record))
                if len(found) == MAX_CALLS:
                    break
        return found


def _service(bucket: ClosedBucket | None, owner: Client) -> float | None:
    """In a bucket."""
    if bucket is None:
        return 0.0
    unnamed = bucket.whole.clients > len(bucket.clients)
    return bucket.clients.get(owner, None if unnamed else 0.0)
