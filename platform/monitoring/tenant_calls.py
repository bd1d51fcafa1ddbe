"""Calls and shares of each tenant, or of each app of one tenant, in the last minutes.

Counts are those of :mod:`fairserve.platform.monitoring.app_calls`, so that the small tenants are there,
too, and rejections that an operator made are not. Shares are those of
:mod:`fairserve.platform.monitoring.client_shares`, summed over clients.

Cost of a reading: that of the shares, and O(apps with calls), about 5 us each, in turns of the event
loop. A reading serves all who ask within a bucket. Weakness: the service over time of a tenant that was
not among the first 100 in a bucket of :mod:`fairserve.platform.monitoring.activity_bucket` is unknown
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fairserve.platform.monitoring.activity import Activity
from fairserve.platform.monitoring.activity_bucket import CallCounts, ClosedBucket
from fairserve.platform.monitoring.app_calls import AppCalls
from fairserve.platform.monitoring.client_shares import AT_ONCE, ClientShares, Share
from fairserve.platform.monitoring.entitled import DemandShares
from fairserve.platform.monitoring.live_snapshot import Series

MAX_READINGS = 100
"""Readings that are kept within a bucket, of all tenants and of single ones."""


@dataclass(slots=True)
class CallGroup:
    """The calls of a tenant, or of an app of a tenant."""

    counts: CallCounts = field(default_factory=CallCounts)
    """Counts of the last minute."""
    waiting: int = 0
    """Calls that wait for a worker now."""
    oldest_s: float = 0.0
    """Longest of their waits so far."""
    share: Share | None = None
    """Shares of the last five minutes; None without a client that had calls."""

    @property
    def rejected(self) -> int:
        """Return the number of rejected calls in the last minute."""
        return sum(self.counts.refused.values())

    @property
    def calls(self) -> int:
        """Return the number of accepted and rejected calls in the last minute."""
        return self.counts.accepted + self.rejected

    @property
    def rejected_share(self) -> float:
        """Return the share of rejected calls in the last minute; 0 without calls."""
        return self.rejected / self.calls if self.calls else 0.0

    @property
    def failed(self) -> int:
        """Return the number of calls that failed, or expired in the queue, in the last minute."""
        return self.counts.ended.get("failed", 0) + self.counts.ended.get("expired", 0)

    @property
    def wait_s(self) -> float | None:
        """Return the 99th percentile of the waits of the last minute, or the longest wait of now.

        None if no call waits, and no wait has ended.
        """
        ended = self.counts.delay_quantile(0.99)
        if ended is None:
            return self.oldest_s if self.waiting else None
        return max(ended, self.oldest_s)


class TenantCalls:
    """Belongs to the event loop. ``clock`` is control's."""

    def __init__(
        self,
        app_calls: AppCalls,
        client_shares: ClientShares,
        activity: Activity,
        clock: Callable[[], float],
    ) -> None:
        self._app_calls = app_calls
        self._client_shares = client_shares
        self._activity = activity
        self._clock = clock
        self._read: dict[str | None, Mapping[str, CallGroup]] = {}
        self._bucket = -1

    async def read(self, tenant: str | None) -> Mapping[str, CallGroup]:
        """Return the calls by tenant, or those of a tenant by app. Do not change them."""
        bucket = self._activity.number
        if bucket == self._bucket and tenant in self._read:
            return self._read[tenant]
        found = await self._calls(tenant)
        shares = await self._client_shares.of_all(tenant)
        await asyncio.to_thread(_add_shares, found, tenant, shares)
        if bucket != self._bucket or len(self._read) >= MAX_READINGS:
            self._read, self._bucket = {}, bucket
        self._read[tenant] = found
        return found

    async def _calls(self, tenant: str | None) -> dict[str, CallGroup]:
        """Return the calls without shares."""
        now_s, app_calls = self._clock(), self._app_calls
        app_calls.settle(now_s)
        found: dict[str, CallGroup] = {}
        apps = [app for app in app_calls.apps() if tenant in (None, app[0])]
        for number, app in enumerate(apps, 1):
            each = found.setdefault(app[tenant is not None], CallGroup())
            each.counts.add(app_calls.counts(app))
            waits = app_calls.waiting(app, now_s)
            each.waiting += waits.calls
            each.oldest_s = max(each.oldest_s, waits.oldest_s)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def buckets(self, most: int) -> list[ClosedBucket | None]:
        """Return the last ``most`` buckets of the activity; None for those without calls."""
        closed, last = self._activity.buckets(), self._activity.number
        return [closed.get(number) for number in range(last - most, last)]


def _add_shares(groups: dict[str, CallGroup], tenant: str | None, shares: DemandShares) -> None:
    """Add the shares of clients to those of their groups."""
    for owner, served in shares.received.items():
        each = groups.setdefault(owner[tenant is not None], CallGroup())
        before = each.share or Share(0.0, 0.0)
        each.share = Share(before.served + served, before.entitled + shares.entitled[owner])


def service_of(
    buckets: Iterable[ClosedBucket | None], tenant: str | None, groups: Collection[str]
) -> dict[str, Series]:
    """Return the service of tenants, or of apps of a tenant, by bucket; None where it is not known."""
    found: dict[str, Series] = {group: [] for group in groups}
    for bucket in buckets:
        if bucket is None:
            served: Mapping[str, float] = {}
        elif tenant is None:
            served = {name: counts.service for name, counts in bucket.tenants.items()}
        else:
            served = _by_app(bucket, tenant)
        unknown = tenant is None and bucket is not None and bucket.other_tenants
        for group, values in found.items():
            values.append(served.get(group, None if unknown else 0.0))
    return found


def _by_app(bucket: ClosedBucket, tenant: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for owner, service in bucket.clients.items():
        if owner[0] == tenant:
            found[owner[1]] = found.get(owner[1], 0.0) + service
    return found
