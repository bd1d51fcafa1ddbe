"""Buckets of five seconds: service by client, and counts by tenant.

A bucket is open while calls are counted in it, then closed. A closed bucket names the clients with most
service and with most rejections, and has a number and a sum for the others. The counts of unnamed
tenants are the difference of the total and the named ones.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import itemgetter
from typing import TypeVar

from fairserve.platform.control.messages import Client
from fairserve.scheduling.metrics import jain_index

MAX_CLIENTS = 500
"""Maximum number of named served clients in a closed bucket."""
MAX_REFUSED = 100
"""Maximum number of named rejected clients in a closed bucket."""
MAX_TENANTS = 100
MAX_REASONS = 24
"""Maximum number of rejection reasons that are counted apart in one bucket."""
OTHER_REASON = "other"

_LEAST_DELAY_S = 0.001
_STEP = math.log(1.25)
_LAST_STEP = 80

K = TypeVar("K")
V = TypeVar("V", int, float, tuple[float, int])

Entitled = Callable[[Collection[Client]], Mapping[Client, float]]
"""Returns the entitled service of each of these clients among them, in any unit."""


class Served:
    """The service of one client by one pool in one bucket. Each call has a reference, which saves a
    lookup by client at each progress.
    """

    __slots__ = ("number", "service")

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the bucket."""
        self.service = 0.0


NOT_SERVED = Served(-1)
"""Placeholder for calls without service; it belongs to no bucket."""
_NO_POOLS: Mapping[str, Served] = {}


class LiveCounts:
    """Numbers of queued and running calls of a client."""

    __slots__ = ("queued_by_pool", "running")

    def __init__(self) -> None:
        self.queued_by_pool: dict[str, int] = {}
        self.running = 0

    @property
    def queued(self) -> int:
        """Return the number of queued calls of all pools."""
        return sum(self.queued_by_pool.values())

    def enqueue(self, pool: str) -> None:
        """Count a call that is queued."""
        self.queued_by_pool[pool] = self.queued_by_pool.get(pool, 0) + 1

    def dequeue(self, pool: str) -> None:
        """Count that a call is not queued any more."""
        self.queued_by_pool[pool] -= 1
        if not self.queued_by_pool[pool]:
            del self.queued_by_pool[pool]


class CallCounts:
    """Counts of calls in some time. Delays are counted in logarithmic steps of 25 %, so that a quantile
    is exact to 12 %. Adding costs about 1 us.
    """

    __slots__ = ("accepted", "delays", "ended", "refused")

    def __init__(self) -> None:
        self.accepted = 0
        self.refused: dict[str, int] = {}
        """Rejected calls by reason."""
        self.ended: dict[str, int] = {}
        """Ended calls by outcome."""
        self.delays: dict[int, int] = {}

    def refuse(self, reason: str) -> None:
        """Count a rejected call."""
        if reason not in self.refused and len(self.refused) >= MAX_REASONS:
            reason = OTHER_REASON
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def delay(self, seconds: float) -> None:
        """Count the queue delay of a call."""
        step = 0
        if seconds >= _LEAST_DELAY_S:
            step = min(_LAST_STEP, 1 + int(math.log(seconds / _LEAST_DELAY_S) / _STEP))
        self.delays[step] = self.delays.get(step, 0) + 1

    def delay_quantile(self, share: float) -> float | None:
        """Return the quantile of the delays at ``share``; None without delays."""
        rank, seen = share * sum(self.delays.values()), 0
        for step in sorted(self.delays):
            seen += self.delays[step]
            if seen >= rank:
                return 0.0 if step == 0 else _LEAST_DELAY_S * math.exp(_STEP * (step - 0.5))
        return None

    def add(self, other: CallCounts) -> None:
        """Add other counts."""
        self.accepted += other.accepted
        _add(self.ended, other.ended)
        _add(self.delays, other.delays)
        _add(self.refused, other.refused)

    def subtract(self, other: CallCounts) -> None:
        """Subtract counts that were added before."""
        self.accepted -= other.accepted
        _subtract(self.ended, other.ended)
        _subtract(self.delays, other.delays)
        _subtract(self.refused, other.refused)


class Counts(CallCounts):
    """Counts of the calls of one or all tenants in one bucket. Adding costs about 1 us."""

    __slots__ = (
        "cached_tokens",
        "clients",
        "jain",
        "prompt_tokens",
        "queued",
        "running",
        "runs_begun",
        "runs_ended",
        "service",
    )

    def __init__(self) -> None:
        super().__init__()
        self.runs_begun = 0
        self.runs_ended = 0
        self.prompt_tokens = 0
        """Prompt tokens of ended calls, including ``cached_tokens``."""
        self.cached_tokens = 0
        # Set when the bucket is closed.
        self.service = 0.0
        self.clients = 0
        """Number of served clients."""
        self.queued = 0
        """Queued calls at the end of the bucket; ``running`` likewise."""
        self.running = 0
        self.jain: float | None = None

    @property
    def weight(self) -> tuple[float, int]:
        """Return the rank by which a closed bucket selects named tenants."""
        return self.service, self.accepted + sum(self.refused.values())

    def add_all(self, other: Counts) -> None:
        """Add other counts, except for Jain's index, which is not a sum."""
        self.add(other)
        self.runs_begun += other.runs_begun
        self.runs_ended += other.runs_ended
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.service += other.service
        self.clients += other.clients
        self.queued += other.queued
        self.running += other.running


class OpenBucket:
    """The current bucket. Its size is O(clients served or rejected in five seconds)."""

    __slots__ = ("clients", "number", "refused", "tenants", "workers")

    def __init__(self, number: int) -> None:
        self.number = number
        self.clients: dict[Client, dict[str, Served]] = {}
        """Service of each client by pool."""
        self.refused: dict[Client, int] = {}
        self.tenants: defaultdict[str, Counts] = defaultdict(Counts)
        self.workers: dict[str, tuple[int, int]] = {}
        """Prompt tokens and cached prompt tokens of ended calls, by worker."""

    def served(self, owner: Client, pool: str) -> Served:
        """Return the entry that counts the service of a client by a pool."""
        pools = self.clients.setdefault(owner, {})
        found = pools.get(pool)
        if found is None:
            found = pools[pool] = Served(self.number)
        return found

    def service(self, owner: Client) -> float:
        """Return the service of a client so far."""
        return sum(served.service for served in self.clients.get(owner, _NO_POOLS).values())

    def by_pool(self, owners: Iterable[Client]) -> dict[str, dict[Client, float]]:
        """Return the service of clients by pool."""
        found: dict[str, dict[Client, float]] = {}
        for owner in owners:
            for pool, served in self.clients[owner].items():
                found.setdefault(pool, {})[owner] = served.service
        return found

    def close(self, live_counts: Mapping[Client, LiveCounts], entitled: Entitled) -> ClosedBucket:
        """Return the closed bucket; ``live_counts`` has the clients with live calls."""
        services = {owner: self.service(owner) for owner in self.clients}
        named = largest(services, MAX_CLIENTS)
        for owner, service in services.items():
            counts = self.tenants[owner[0]]
            counts.service += service
            counts.clients += 1
        for owner, calls in live_counts.items():
            counts = self.tenants[owner[0]]
            counts.queued += calls.queued
            counts.running += calls.running
        waiting = {owner: 0.0 for owner in live_counts if owner not in self.clients}
        shares: dict[str, list[float]] = {}
        for owner, share in of_entitled({**named, **waiting}, entitled).items():
            shares.setdefault(owner[0], []).append(share)
        for tenant, own in shares.items():
            self.tenants[tenant].jain = index(own)
        return ClosedBucket(self, named, index([x for own in shares.values() for x in own]))


class ClosedBucket:
    """A closed bucket; ``whole`` has the counts of all calls. Read-only."""

    __slots__ = ("clients", "number", "other_tenants", "refused", "tenants", "whole", "workers")

    def __init__(self, bucket: OpenBucket, named: dict[Client, float], jain: float | None) -> None:
        self.number = bucket.number
        self.clients = named
        self.refused = largest(bucket.refused, MAX_REFUSED)
        self.whole = Counts()
        for counts in bucket.tenants.values():
            self.whole.add_all(counts)
        self.whole.jain = jain
        weights = {tenant: counts.weight for tenant, counts in bucket.tenants.items()}
        self.tenants = {tenant: bucket.tenants[tenant] for tenant in largest(weights, MAX_TENANTS)}
        self.other_tenants = len(bucket.tenants) - len(self.tenants)
        """Number of unnamed tenants."""
        self.workers = bucket.workers

    @property
    def others(self) -> tuple[int, float]:
        """Return the number and service of the unnamed served clients."""
        named = sum(self.clients.values())
        return self.whole.clients - len(self.clients), self.whole.service - named


def of_entitled(services: Mapping[Client, float], entitled: Entitled) -> dict[Client, float]:
    """Return each client's service divided by its entitled service."""
    due = entitled(services)
    return {owner: service / due[owner] for owner, service in services.items()}


def index(shares: list[float]) -> float | None:
    """Return Jain's index of services over entitlement; None if no client was served."""
    return jain_index(shares) if any(shares) else None


def largest(values: Mapping[K, V], most: int) -> dict[K, V]:
    """Return the entries with the largest values; ties go to the first ones."""
    if len(values) <= most:
        return dict(values)
    return dict(heapq.nlargest(most, values.items(), key=itemgetter(1)))


def _add(counts: dict[K, int], more: Mapping[K, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count


def _subtract(counts: dict[K, int], less: Mapping[K, int]) -> None:
    """Subtract counts; keys with 0 are removed."""
    for key, count in less.items():
        left = counts[key] - count
        if left:
            counts[key] = left
        else:
            del counts[key]
