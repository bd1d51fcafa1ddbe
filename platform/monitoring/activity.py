"""Service per client and counts per tenant over the last half hour, updated while calls run.

Listens to control, which reports a call's usage at each progress and at its end. The difference to the
previous report is added to the call's client in the open bucket of five seconds. Service is the linear
cost of the ledger (prompt + 2 * output tokens, including cached ones), so that the sum over all buckets
equals that of the ledger's rows while every client is named. A client is a tenant's app and user. A
call of the tier ``priority`` counts for as little as it is charged: by the rest a client exceeds the
share of its weights, as it was granted.

Memory: 360 buckets of at most 500 served and 100 refused clients and 100 tenants
(:mod:`fairserve.platform.monitoring.activity_bucket`), at most ``MAX_KNOWN`` clients with their sums of
the last 1, 5 and 30 minutes, the open bucket included, and one entry per queued or running call.

Cost: O(1) a progress, about 0.3 microseconds; closing a bucket O(its clients), once in 5 s.

Jain's index is ``(sum x)^2 / (n * sum x^2)`` with x = service / entitled service, by levels and in the
unit of the system in force (:mod:`fairserve.platform.control.entitlement`). It covers named clients with
demand: those served in the interval, and those with calls at its end and no service. It is None if no
client was served. Weakness: a client with little demand lowers the index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from fairserve.interactions.call import Call
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.listener import CallListener
from fairserve.platform.control.messages import Client
from fairserve.platform.monitoring.activity_bucket import (
    NOT_SERVED,
    ClosedBucket,
    Entitled,
    LiveCounts,
    OpenBucket,
)
from fairserve.scheduling.events import CallOutcome, InteractionEnded
from fairserve.scheduling.fairness.cost import Linear

BUCKET_S = 5.0
WINDOWS = (12, 60, 360)
"""Numbers of closed buckets in the windows of 1, 5 and 30 minutes."""
BUCKETS = WINDOWS[-1]
DEMAND_BUCKETS = 2
"""Closed buckets in the demand for a pool."""
MAX_KNOWN = 10_000

_SERVICE = Linear()
_WP, _WQ = _SERVICE.wp, _SERVICE.wq


class PoolDemand(NamedTuple):
    """Service and queued calls of the clients with demand for a pool."""

    services: dict[Client, float]
    """Service of each of these clients."""
    queued: dict[Client, int]
    """Queued calls of those that have any."""


class Known:
    """The sums of a client over the closed buckets that name it. Read-only."""

    __slots__ = ("buckets", "owner", "refused", "service", "since")

    def __init__(self, owner: Client, since: int) -> None:
        self.owner = owner
        """The client: all buckets have this object, and not one of each of its calls."""
        self.since = since
        """First bucket in the sums."""
        self.buckets = 0
        """Number of closed buckets that name the client."""
        self.service = [0.0, 0.0, 0.0]
        """Service by window."""
        self.refused = 0
        """Rejected calls in the longest window."""


class _CountedCall:
    """The counted service of a call, and the client's entry to which it was last added."""

    __slots__ = ("served", "service", "tier_weight")

    def __init__(self, tier_weight: float) -> None:
        self.tier_weight = tier_weight
        self.service = 0.0
        self.served = NOT_SERVED


class Activity(CallListener):
    """Current activity, for use on the event loop. ``now_s`` is monotonic time."""

    def __init__(
        self,
        entitled: Entitled,
        clock: Callable[[], float],
        tier_weight: Callable[[Call], float] = lambda _: 1.0,
    ) -> None:
        """``entitled`` returns the current entitlement of clients, ``tier_weight`` the factor on it of
        a call's tier.
        """
        self._entitled = entitled
        self._tier_weight = tier_weight
        self._clock = clock
        self._open = OpenBucket(int(clock() // BUCKET_S))
        self._ends_s = (self._open.number + 1) * BUCKET_S
        self._closed: dict[int, ClosedBucket] = {}
        """Closed buckets by number, ascending. An empty bucket has no entry."""
        self._by_pool: deque[tuple[int, dict[str, dict[Client, float]]]] = deque(
            maxlen=DEMAND_BUCKETS
        )
        """Numbers of the last closed buckets, and the service of their named clients by pool."""
        self._known: dict[Client, Known] = {}
        self._live_counts: dict[Client, LiveCounts] = {}
        self._calls: dict[str, _CountedCall] = {}
        """Queued and running calls by id."""

    # --- a call, see CallListener -----------------------------------------------------------------

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Count a call that is queued."""
        self._at(now_s).tenants[call.call.tenant].accepted += 1
        self._calls[call.call.call_id] = _CountedCall(self._tier_weight(call.call))
        self._of(call.owner).enqueue(call.call.pool)

    def call_granted(self, call: CallState) -> None:
        """Move a call of its client from queued to running."""
        live_counts = self._live_counts[call.owner]
        live_counts.dequeue(call.call.pool)
        live_counts.running += 1

    def call_requeued(self, call: CallState) -> None:
        """Move a call of its client from running to queued."""
        live_counts = self._live_counts[call.owner]
        live_counts.running -= 1
        live_counts.enqueue(call.call.pool)

    def call_started(self, call: CallState, now_s: float) -> None:
        """Count the queue delay of a call, unless it is a background call."""
        if not call.call.background:
            self._at(now_s).tenants[call.call.tenant].delay(call.queue_s or 0.0)

    def call_progressed(self, call: CallState, now_s: float) -> None:
        """Add the service of a call since its last progress to its client."""
        if now_s >= self._ends_s:
            self._roll(now_s)
        text, system, _, output, _ = call.usage
        counted = self._calls[call.call.call_id]
        service = (_WP * (text + system) + _WQ * output) / counted.tier_weight
        more = service - counted.service
        if more:
            counted.service = service
            served = counted.served
            if served.number != self._open.number:
                served = counted.served = self._open.served(call.owner, call.call.pool)
            served.service += more

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Count the outcome and the prompt of a call, and the rest of its service."""
        self._leave(call)
        self.call_progressed(call, now_s)
        del self._calls[call.call.call_id]
        bucket = self._open
        counts = bucket.tenants[call.call.tenant]
        counts.ended[outcome] = counts.ended.get(outcome, 0) + 1
        worker_id = call.worker_id
        if worker_id is None:
            return
        if not call.started and not call.call.background:
            counts.delay(call.queue_s or 0.0)
        prompt = call.usage.prompt_tokens
        if prompt:
            cached = min(prompt, call.usage.cached_tokens)
            counts.prompt_tokens += prompt
            counts.cached_tokens += cached
            before = bucket.workers.get(worker_id, (0, 0))
            bucket.workers[worker_id] = (before[0] + prompt, before[1] + cached)

    def call_dropped(self, call: CallState) -> None:
        """Remove a call that gets no ledger row."""
        self._leave(call)
        del self._calls[call.call.call_id]

    def _leave(self, call: CallState) -> None:
        live_counts = self._live_counts[call.owner]
        if call.worker_id is None:
            live_counts.dequeue(call.call.pool)
        else:
            live_counts.running -= 1
        if not live_counts.queued_by_pool and not live_counts.running:
            del self._live_counts[call.owner]

    def call_rejected(self, call: CallState, reason: str, now_s: float) -> None:
        """Count a rejected call by its reason."""
        bucket = self._at(now_s)
        bucket.tenants[call.call.tenant].refuse(reason)
        bucket.refused[call.owner] = bucket.refused.get(call.owner, 0) + 1

    # --- a run, see CallListener ------------------------------------------------------------------

    def run_opened(self, tenant: str) -> None:
        """Count a run that began or was reopened."""
        self._at(self._clock()).tenants[tenant].runs_begun += 1

    def run_ended(self, run: InteractionEnded) -> None:
        """Count a run that ended."""
        self._at(self._clock()).tenants[run.tenant].runs_ended += 1

    # --- buckets ----------------------------------------------------------------------------------

    def _at(self, now_s: float) -> OpenBucket:
        if now_s >= self._ends_s:
            self._roll(now_s)
        return self._open

    def settle(self, now_s: float) -> None:
        """Close the open bucket if its interval has ended."""
        self._at(now_s)

    def _roll(self, now_s: float) -> None:
        number = int(now_s // BUCKET_S)
        over = self._open
        closed = over.close(self._live_counts, self._entitled)
        if closed.tenants:
            self._closed[over.number] = closed
            self._remember(closed)
        self._by_pool.append((over.number, over.by_pool(closed.clients)))
        self._forget_until(over.number, number)
        self._open = OpenBucket(number)
        self._ends_s = (number + 1) * BUCKET_S

    def _remember(self, bucket: ClosedBucket) -> None:
        known = self._known
        for owner in {**bucket.clients, **bucket.refused}:
            entry = known.get(owner)
            if entry is None:
                entry = known[owner] = Known(owner, bucket.number)
            entry.buckets += 1
        bucket.clients = {known[owner].owner: each for owner, each in bucket.clients.items()}
        bucket.refused = {known[owner].owner: each for owner, each in bucket.refused.items()}
        for owner, service in bucket.clients.items():
            sums = known[owner].service
            for window in range(len(WINDOWS)):
                sums[window] += service
        for owner, refused in bucket.refused.items():
            known[owner].refused += refused
        if len(known) > MAX_KNOWN:
            least = sorted(known, key=lambda owner: known[owner].service[-1])
            for owner in least[: len(known) - MAX_KNOWN * 9 // 10]:
                del known[owner]

    def _forget_until(self, before: int, number: int) -> None:
        """Remove expired buckets from the windows when ``number`` is opened after ``before``."""
        for window, length in enumerate(WINDOWS):
            for old in range(before - length, min(before, number - length - 1) + 1):
                bucket = self._closed.get(old)
                if bucket is None:
                    continue
                for owner, service in bucket.clients.items():
                    entry = self._known.get(owner)
                    if entry is not None and entry.since <= old:
                        entry.service[window] -= service
                if length == BUCKETS:
                    self._drop(bucket)

    def _drop(self, bucket: ClosedBucket) -> None:
        del self._closed[bucket.number]
        for owner in {**bucket.clients, **bucket.refused}:
            entry = self._known.get(owner)
            if entry is not None and entry.since <= bucket.number:
                entry.refused -= bucket.refused.get(owner, 0)
                entry.buckets -= 1
                if not entry.buckets:
                    del self._known[owner]

    # --- reads ------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Return the number of the open bucket. Bucket n begins at ``n * BUCKET_S``."""
        return self._open.number

    def buckets(self) -> Mapping[int, ClosedBucket]:
        """Return the closed buckets of the last half hour, by number, ascending."""
        return self._closed

    def clients(self) -> Iterator[Client]:
        """Yield the clients of the last half hour that are named or have live calls."""
        yield from self._known
        newcomers: Iterable[Client]
        seen = self._known.keys()
        newcomers = {**self._live_counts, **self._open.clients, **self._open.refused}
        yield from (owner for owner in newcomers if owner not in seen)

    def service(self, owner: Client) -> tuple[float, float, float]:
        """Return a client's service in the last 1, 5 and 30 minutes, including the open bucket."""
        now = self._open.service(owner)
        entry = self._known.get(owner)
        if entry is None:
            return now, now, now
        one, five, thirty = entry.service
        return one + now, five + now, thirty + now

    def demand(self) -> dict[str, PoolDemand]:
        """Return the demand for each pool in the last ``DEMAND_BUCKETS`` closed buckets.

        Clients with demand are the named ones that the pool served, and all with queued calls for it.
        """
        found: dict[str, PoolDemand] = {}
        oldest = self._open.number - DEMAND_BUCKETS
        recent = [by_pool for number, by_pool in self._by_pool if number >= oldest]
        for pool, services in chain.from_iterable(each.items() for each in recent):
            so_far = found.setdefault(pool, PoolDemand({}, {})).services
            for owner, service in services.items():
                so_far[owner] = so_far.get(owner, 0.0) + service
        for owner, live in self._live_counts.items():
            for pool, calls in live.queued_by_pool.items():
                demand = found.setdefault(pool, PoolDemand({}, {}))
                demand.queued[owner] = calls
                demand.services.setdefault(owner, 0.0)
        return found

    def refusals(self, owner: Client) -> int:
        """Return the rejected calls of a client in the last 30 minutes."""
        entry = self._known.get(owner)
        return self._open.refused.get(owner, 0) + (0 if entry is None else entry.refused)

    def live_calls(self, owner: Client) -> tuple[int, int]:
        """Return the numbers of queued and running calls of a client."""
        found = self._live_counts.get(owner)
        return (0, 0) if found is None else (found.queued, found.running)

    def queued(self, owner: Client) -> dict[str, int]:
        """Return the numbers of a client's queued calls by pool; pools without one are not in it."""
        found = self._live_counts.get(owner)
        return {} if found is None else dict(found.queued_by_pool)

    def queues(self, tenant: str | None) -> dict[str, int]:
        """Return the lengths of the queues by pool, of one or all tenants. O(clients with calls)."""
        lengths: dict[str, int] = {}
        for owner, live in self._live_counts.items():
            if tenant in (None, owner[0]):
                for pool, calls in live.queued_by_pool.items():
                    lengths[pool] = lengths.get(pool, 0) + calls
        return lengths

    def _of(self, owner: Client) -> LiveCounts:
        found = self._live_counts.get(owner)
        if found is None:
            found = self._live_counts[owner] = LiveCounts()
        return found
