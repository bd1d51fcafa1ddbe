"""Who is served how much while calls run: service per client, and counts per tenant, over half an hour.

Listens to control: a call's usage arrives at each progress and at its end. The difference to what was
counted of the call before goes to its client, in the open bucket of five seconds: service is
the linear cost of the ledger (prompt + 2 * output tokens, cached ones included), so that the sum over
all buckets is that of the ledger's rows, as long as no client is without a name. A client is a tenant's
app and user.

Memory: 360 buckets of at most 500 served and 100 refused clients and 100 tenants
(:mod:`fairserve.platform.monitoring.activity_bucket`), at most ``MAX_KNOWN`` clients with their sums of
the last 1, 5 and 30 minutes, the open bucket included, and one entry per queued or running call.

Cost: O(1) a progress, about 0.3 microseconds; closing a bucket O(its clients), once in 5 s.

Jain's index here is ``(sum x)^2 / (n * sum x^2)`` of x = service over what the client is entitled
to, by levels and in the currency of the system in force
(:mod:`fairserve.platform.control.entitlement`). It is over the clients with demand: those that
were served in the time in question, and those that have calls under way at its end and were served
nothing. Clients without a name are left out. None where nobody was served. Weakness: who asked for
little got little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.listener import CallListener
from fairserve.platform.control.record import Client
from fairserve.platform.monitoring.activity_bucket import (
    NOT_SERVED,
    ClosedBucket,
    Entitled,
    OpenBucket,
    UnderWay,
    index,
    of_entitled,
)
from fairserve.scheduling.cost import Linear
from fairserve.scheduling.events import CallOutcome

BUCKET_S = 5.0
WINDOWS = (12, 60, 360)
"""Closed buckets of the last 1, 5 and 30 minutes."""
BUCKETS = WINDOWS[-1]
MAX_KNOWN = 10_000

_SERVICE = Linear()
_WP, _WQ = _SERVICE.wp, _SERVICE.wq


class Known:
    """A client with a name in a closed bucket: its sums over them. To be read only."""

    __slots__ = ("buckets", "refused", "service", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        """The first bucket that its sums have."""
        self.buckets = 0
        """How many have it."""
        self.service = [0.0, 0.0, 0.0]
        """By window."""
        self.refused = 0
        """In the longest one."""


class _CountedCall:
    """What of a call's service is counted so far, and the client's entry that it was added to last."""

    __slots__ = ("served", "service")

    def __init__(self) -> None:
        self.service = 0.0
        self.served = NOT_SERVED


class Activity(CallListener):
    """Belongs to the event loop. ``now_s`` is the time of the monotonic clock."""

    def __init__(self, entitled: Entitled, clock: Callable[[], float]) -> None:
        """``entitled`` returns the service that clients are entitled to now."""
        self._entitled = entitled
        self._clock = clock
        self._open = OpenBucket(int(clock() // BUCKET_S))
        self._ends_s = (self._open.number + 1) * BUCKET_S
        self._closed: dict[int, ClosedBucket] = {}
        """Closed buckets by number, ascending. One in which nothing happened has no entry."""
        self._known: dict[Client, Known] = {}
        self._under_way: dict[Client, UnderWay] = {}
        self._calls: dict[str, _CountedCall] = {}
        """Queued and running calls by id."""
        self._minute_jain: dict[str | None, float | None] = {}

    # --- a call, see CallListener -----------------------------------------------------------------

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Count a call that is queued."""
        self._at(now_s).of(call.call.tenant).accepted += 1
        self._calls[call.call.call_id] = _CountedCall()
        self._of(call.owner).queued += 1

    def call_granted(self, call: CallState) -> None:
        """Move a call of its client from queued to running."""
        under_way = self._under_way[call.owner]
        under_way.queued -= 1
        under_way.running += 1

    def call_requeued(self, call: CallState) -> None:
        """Move a call of its client from running to queued."""
        under_way = self._under_way[call.owner]
        under_way.running -= 1
        under_way.queued += 1

    def call_started(self, call: CallState, now_s: float) -> None:
        """Count the queue delay of a call."""
        self._at(now_s).of(call.call.tenant).delay(call.queue_s or 0.0)

    def call_progressed(self, call: CallState, now_s: float) -> None:
        """Add the service of a call since its last progress to its client."""
        if now_s >= self._ends_s:
            self._roll(now_s)
        text, system, _, output = call.usage
        service = _WP * (text + system) + _WQ * output
        counted = self._calls[call.call.call_id]
        more = service - counted.service
        if more:
            counted.service = service
            served = counted.served
            if served.number != self._open.number:
                served = counted.served = self._open.served(call.owner)
            served.service += more

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Count the outcome and the prompt of a call, and the rest of its service."""
        self._leave(call)
        self.call_progressed(call, now_s)
        del self._calls[call.call.call_id]
        bucket = self._open
        counts = bucket.of(call.call.tenant)
        counts.ended[outcome] = counts.ended.get(outcome, 0) + 1
        worker_id = call.worker_id
        if worker_id is None:
            return
        if not call.started:
            counts.delay(call.queue_s or 0.0)
        prompt = call.usage.prompt_tokens
        if prompt:
            cached = min(prompt, call.usage.cached_tokens)
            counts.prompt_tokens += prompt
            counts.cached_tokens += cached
            before = bucket.workers.get(worker_id, (0, 0))
            bucket.workers[worker_id] = (before[0] + prompt, before[1] + cached)

    def call_dropped(self, call: CallState) -> None:
        """Forget a call that has no row."""
        self._leave(call)
        del self._calls[call.call.call_id]

    def _leave(self, call: CallState) -> None:
        under_way = self._under_way[call.owner]
        if call.worker_id is None:
            under_way.queued -= 1
        else:
            under_way.running -= 1
        if not under_way.queued and not under_way.running:
            del self._under_way[call.owner]

    def call_refused(self, call: CallState, reason: str, now_s: float) -> None:
        """Count a rejected call by its reason."""
        bucket = self._at(now_s)
        bucket.of(call.call.tenant).refuse(reason)
        bucket.refused[call.owner] = bucket.refused.get(call.owner, 0) + 1

    # --- a run, see CallListener ------------------------------------------------------------------

    def run_opened(self, tenant: str) -> None:
        """Count a run that began or was reopened."""
        self._at(self._clock()).of(tenant).runs_begun += 1

    def run_ended(self, tenant: str) -> None:
        """Count a run that ended."""
        self._at(self._clock()).of(tenant).runs_ended += 1

    # --- buckets ----------------------------------------------------------------------------------

    def _at(self, now_s: float) -> OpenBucket:
        if now_s >= self._ends_s:
            self._roll(now_s)
        return self._open

    def settle(self, now_s: float) -> None:
        """Close the bucket that is over, if it is."""
        self._at(now_s)

    def _roll(self, now_s: float) -> None:
        number = int(now_s // BUCKET_S)
        over = self._open
        closed = over.close(self._under_way, self._entitled)
        if closed.tenants:
            self._closed[over.number] = closed
            self._remember(closed)
        self._forget_until(over.number, number)
        self._open = OpenBucket(number)
        self._ends_s = (number + 1) * BUCKET_S
        self._minute_jain.clear()

    def _remember(self, bucket: ClosedBucket) -> None:
        known = self._known
        for owner in {**bucket.clients, **bucket.refused}:
            entry = known.get(owner)
            if entry is None:
                entry = known[owner] = Known(bucket.number)
            entry.buckets += 1
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
        """``number`` is the open bucket now, ``before`` was it: others fall out of the windows."""
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

    # --- what is known ----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the present bucket. Number n lasts from ``n * BUCKET_S`` on."""
        return self._open.number

    def buckets(self) -> Mapping[int, ClosedBucket]:
        """The closed ones of the last half hour, by number, ascending."""
        return self._closed

    def clients(self) -> Iterator[Client]:
        """Everybody of the last half hour who is known by name, or has calls under way."""
        yield from self._known
        newcomers: Iterable[Client]
        seen = self._known.keys()
        newcomers = {**self._under_way, **self._open.clients, **self._open.refused}
        yield from (owner for owner in newcomers if owner not in seen)

    def service(self, owner: Client) -> tuple[float, float, float]:
        """What a client was served in the last 1, 5 and 30 minutes, the present bucket included."""
        served = self._open.clients.get(owner)
        now = 0.0 if served is None else served.service
        entry = self._known.get(owner)
        if entry is None:
            return now, now, now
        one, five, thirty = entry.service
        return one + now, five + now, thirty + now

    def refusals(self, owner: Client) -> int:
        """Of the last 30 minutes."""
        entry = self._known.get(owner)
        return self._open.refused.get(owner, 0) + (0 if entry is None else entry.refused)

    def under_way(self, owner: Client) -> tuple[int, int]:
        """Queued and running calls."""
        found = self._under_way.get(owner)
        return (0, 0) if found is None else (found.queued, found.running)

    def minute_jain(self, tenant: str | None) -> float | None:
        """Jain's index over the last minute, among a tenant's clients, or all; once per bucket."""
        if tenant not in self._minute_jain:
            services = {
                owner: service
                for owner in self.clients()
                if tenant is None or owner[0] == tenant
                for service in [self.service(owner)[0]]
                if service > 0 or owner in self._under_way
            }
            shares = of_entitled(services, self._entitled)
            self._minute_jain[tenant] = index(list(shares.values()))
        return self._minute_jain[tenant]

    def _of(self, owner: Client) -> UnderWay:
        found = self._under_way.get(owner)
        if found is None:
            found = self._under_way[owner] = UnderWay()
        return found
