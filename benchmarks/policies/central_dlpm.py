"""Centralised DLPM (DLPM paper 5.1, the strawman): Algorithm 1 over the cluster's waiting queue.

It is a feeder, not a router: calls stay in the global queue until a worker can run them at once,
and DLPM chooses among all waiting calls. Of the clients in credit at every level of their path, the
call with the longest match at any worker with free capacity is chosen; siblings are refilled when
none that waits is in credit (:mod:`fairserve.scheduling.fairness.deficits`, shared with the local
DLPM). Dispatch charges ``we * extend``, every generated token ``wq``; a client's weight divides its
charges. The router chooses an open worker with that match, since only open workers are offered
(``cache_aware`` with ``match_threshold`` 0 and ``balance_abs`` null).

Departures: the walk of Algorithm 1 is not executed; the call that it would take first is looked up
in the groups of :mod:`fairserve.scheduling.locality.waiting_index`. So the strawman's cost of
matching the whole queue at each step does not arise here (the simulator charges it, and the
synchronisation). Cache contents are believed, not queried. A call requeued after a worker failure
is charged only for use beyond what it already paid.

A call that is chosen while all waiting siblings have excluded calls only, which need other workers,
is charged at its end, up to the deficit of the least served of them: capacity that none of them could
use is neither a debt nor a credit.

Cost of a selection: O(clients in the buckets with the longest matches), O(waiting clients) if
nothing matches, and O(excluded calls). The end of a call that was chosen beside excluded siblings
costs O(waiting clients). Weakness: a worker has nothing queued behind its running
calls, so each step waits for the scheduler; and as in DLPM a call may be overtaken by longer matches
of its own client.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import Call, ClientPath, Restriction, TokenUsage, path_of_id
from fairserve.scheduling.base import Feeder
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness.deficits import Account, Deficits
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.waiting_index import WaitingIndex


@dataclass(frozen=True, slots=True)
class CentralDlpmOptions:
    """Options: ``quantum`` is Q^u in units of the extend cost, ``we`` and ``wq`` are its weights."""

    quantum: float = 5000.0
    we: float = 1.0
    wq: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.quantum < math.inf:
            raise ValueError(f"quantum is {self.quantum}; allowed: over 0, finite")
        if self.we < 0 or self.wq < 0:
            raise ValueError(f"we is {self.we}, wq is {self.wq}; allowed: not negative")


@dataclass(slots=True)
class _Queued:
    call: Call
    client: Account
    seq: int
    extend_tokens: int = 0
    """Prompt tokens that were paid before its worker failed."""
    output_tokens: int = 0


@dataclass(slots=True)
class _Dispatched:
    client: Account
    seq: int
    weight: float
    extend_tokens: int
    """Prompt tokens paid so far."""
    output_tokens: int
    alone: tuple[bool, ...] = ()
    """Levels, innermost first, at which waiting siblings needed other workers; empty: none."""
    unpaid: float = 0.0
    """Cost so far, which is charged there at the end."""


class _ClientCalls:
    """Calls of a bucket by client, each as ``(arrival number, call id)``, ascending."""

    def __init__(self) -> None:
        self.clients: dict[Account, list[tuple[int, str]]] = {}

    def __len__(self) -> int:
        return len(self.clients)

    def add(self, client: Account, arrival: int, call_id: str) -> None:
        """Add a call."""
        insort(self.clients.setdefault(client, []), (arrival, call_id))

    def discard(self, client: Account, arrival: int, call_id: str) -> None:
        """Remove a call."""
        own = self.clients[client]
        del own[bisect_left(own, (arrival, call_id))]
        if not own:
            del self.clients[client]


class CentralDlpm:
    """Longest match first among the clients in credit, over the whole cluster."""

    def __init__(
        self,
        directory: Directory,
        locality: Locality,
        options: CentralDlpmOptions = CentralDlpmOptions(),
    ) -> None:
        self.options = options
        self._directory = directory
        self._locality = locality
        self._deficits = Deficits(options.quantum)
        self._index = WaitingIndex(locality.tree, _ClientCalls, _longer)
        self._seq = 0
        self._queued: dict[str, _Queued] = {}
        self._restricted: dict[Restriction, dict[str, None]] = {}
        """Queued calls by the workers that can take them."""
        self._queues: dict[Account, list[tuple[int, str]]] = {}
        """Queued calls of each client as ``(arrival number, call id)``, ascending."""
        self._dispatched: dict[str, _Dispatched] = {}
        self._offered: tuple[str, tuple[bool, ...]] | None = None
        """Call of the last selection without some calls, and the levels where it is ``alone``."""

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._queued)

    def deficit(self, client: str) -> float:
        """Return ``q`` of a client, or of an outer level by its id; 0 if unknown."""
        return self._deficits.value(path_of_id(client))

    def counter(self, path: ClientPath) -> float | None:
        """Return ``-q``: the service of a client or an outer level beyond its refills."""
        return -self._deficits.value(path)

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """Return the smallest ``-q`` among the queued accounts one level below."""
        below = self._waiting_below(path)
        return min((-self._deficits.value(each) for each in below), default=None)

    def _waiting_below(self, path: ClientPath) -> set[ClientPath]:
        """Return the accounts one level below a path with queued calls."""
        depth = len(path)
        return {
            client.path[: depth + 1]
            for client in self._queues
            if len(client.path) > depth and client.path[:depth] == path
        }

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls."""
        return [entry.call for entry in self._queued.values()]

    # --- the queue --------------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """Queue a call. Raises ValueError for an id that is queued already."""
        if call.call_id in self._queued:
            raise ValueError(f"call {call.call_id!r} is queued already")
        self._seq += 1
        self._place(_Queued(call, self._deficits.arrive(call.client), self._seq))

    def _place(self, entry: _Queued) -> None:
        call_id, client = entry.call.call_id, entry.client
        self._queued[call_id] = entry
        self._restricted.setdefault(entry.call.restriction, {})[call_id] = None
        insort(self._queues.setdefault(client, []), (entry.seq, call_id))
        self._index.add(call_id, self._locality.keys(call_id), client, entry.seq)

    def _dequeue(self, call_id: str) -> _Queued:
        entry = self._queued.pop(call_id)
        self._index.remove(call_id)
        alike = self._restricted[entry.call.restriction]
        del alike[call_id]
        if not alike:
            del self._restricted[entry.call.restriction]
        own = self._queues[entry.client]
        del own[bisect_left(own, (entry.seq, call_id))]
        if not own:
            del self._queues[entry.client]
        self._deficits.unwait(entry.client)
        return entry

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call without a refund."""
        if call_id not in self._queued:
            return None
        entry = self._dequeue(call_id)
        self._deficits.end(entry.client)
        return entry.call

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Move queued calls to other clients, whose accounts will be charged for them."""
        for call_id, path in paths.items():
            client = self._deficits.arrive(path)
            entry = self._dequeue(call_id)
            self._deficits.end(entry.client)
            entry.call.client, entry.client = path, client
            self._place(entry)

    def interaction_ended(self, interaction_id: str) -> None:
        """Do nothing: this feeder does not use interactions."""

    def share(self, others: Sequence[Feeder]) -> None:
        """Do nothing: deficits belong to one model."""

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: tuple[float, ...]
    ) -> None:
        """Do nothing: deficits belong to one model."""

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Do nothing: this feeder does not use interactions."""

    # --- selection --------------------------------------------------------------------------------

    def peek(
        self, open_workers: Collection[str], excluded: Collection[Restriction] = frozenset()
    ) -> Call | None:
        """Return the call that the walk of Algorithm 1 would take first. Changes nothing.

        Equal matches are ordered by arrival. If no client is in credit, returns the call that is
        first after the refill that ``dispatch`` then performs; ``dispatch`` does not refill while a
        client in credit has only excluded calls.
        """
        names = [name for each in excluded for name in self._restricted.get(each, ())]
        aside = [self._dequeue(call_id) for call_id in names]
        try:
            call = self._walk(open_workers)
            if aside and call is not None:
                line = self._queued[call.call_id].client.line
                alone = tuple(account.waiting == parent.waiting for account, parent in line)
                self._offered = call.call_id, alone
            return call
        finally:
            for entry in aside:
                self._deficits.wait(entry.client)
                self._place(entry)

    def _walk(self, open_workers: Collection[str]) -> Call | None:
        if not self._queued:
            return None
        may_run = self._deficits.may_run
        best = self._longest_match(open_workers) or min(
            own[0] for client, own in self._queues.items() if may_run(client)
        )
        return self._queued[best[1]].call

    def _longest_match(self, open_workers: Collection[str]) -> tuple[int, str] | None:
        may_run = self._deficits.may_run
        best: tuple[int, int, str] | None = None
        mask = self._locality.workers.mask(open_workers)
        for match, bucket in self._index.at_holders(mask):
            if best is not None and match < -best[0]:
                break
            for client, own in bucket.clients.items():
                key = (-match, *own[0])
                if (best is None or key < best) and may_run(client):
                    best = key
        for match, group in self._index.elsewhere(mask, 0 if best is None else -best[0]):
            for call_id, (client, arrival) in group.calls.items():
                key = (-match, arrival, call_id)
                if (best is None or key < best) and may_run(client):
                    best = key
        return None if best is None else best[1:]

    # --- charges ----------------------------------------------------------------------------------

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Refill if no waiting client is in credit, remove the call and charge its extend tokens.

        Raises KeyError if it is not queued.
        """
        if call_id not in self._queued:
            raise KeyError(call_id)
        self._deficits.check_refill()
        entry = self._dequeue(call_id)
        call, client = entry.call, entry.client
        weight = self._directory.weight(call.tenant, call.app, call.user)
        offered, self._offered = self._offered, None
        alone = offered[1] if offered is not None and offered[0] == call_id else ()
        record = _Dispatched(
            client, entry.seq, weight, entry.extend_tokens, entry.output_tokens, alone
        )
        self._dispatched[call_id] = record
        self._charge(record, max(0, call.prompt_tokens - cached_tokens), 0)
        return 1.0 / weight

    def _charge(self, record: _Dispatched, extend_tokens: int, output_tokens: int) -> None:
        """Charge the cost beyond the amount already paid."""
        extend = max(0, extend_tokens - record.extend_tokens)
        output = max(0, output_tokens - record.output_tokens)
        if extend or output:
            record.extend_tokens += extend
            record.output_tokens += output
            cost = (self.options.we * extend + self.options.wq * output) / record.weight
            if any(record.alone):
                record.unpaid += cost
                costs = [0.0 if alone else cost for alone in record.alone]
                self._deficits.charge_levels(record.client, costs)
            else:
                self._deficits.charge(record.client, cost)

    def _charge_alone(self, record: _Dispatched) -> None:
        """Charge a call that ends where waiting siblings needed other workers."""
        costs = [0.0] * len(record.alone)
        for level, (account, parent) in enumerate(record.client.line):
            if record.alone[level]:
                own = self._deficits.value(account.path)
                siblings = self._waiting_below(parent.path) - {account.path}
                least = max((self._deficits.value(each) for each in siblings), default=-math.inf)
                costs[level] = min(record.unpaid, max(0.0, own - least))
        self._deficits.charge_levels(record.client, costs)

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Charge a dispatched call for its usage so far."""
        self._charge(self._dispatched[call_id], usage.extend_tokens, usage.output_tokens)

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """Charge dispatched calls for their output tokens so far."""
        for call_id, output_tokens in totals:
            record = self._dispatched[call_id]
            self._charge(record, record.extend_tokens, output_tokens)

    def expect(self, call_id: str, output_tokens: int) -> None:
        """Do nothing: deficits have no reservations, and are charged at the end of the call."""

    def finish(self, call_id: str, usage: TokenUsage) -> None:
        """End a dispatched call."""
        record = self._dispatched.pop(call_id)
        self._charge(record, usage.extend_tokens, usage.output_tokens)
        if record.unpaid:
            self._charge_alone(record)
        self._deficits.end(record.client)

    def requeue(self, call: Call) -> None:
        """Requeue a call whose worker failed, at its old place; its charges remain."""
        record = self._dispatched.pop(call.call_id)
        if record.unpaid:
            self._charge_alone(record)
        client = self._deficits.arrive(call.client)
        self._deficits.end(record.client)
        self._place(_Queued(call, client, record.seq, record.extend_tokens, record.output_tokens))

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, calls by id."""
        return {
            "deficits": self._deficits.snapshot(),
            "seq": self._seq,
            "queue": [
                [call_id, entry.seq, entry.extend_tokens, entry.output_tokens]
                for call_id, entry in sorted(self._queued.items(), key=lambda item: item[1].seq)
            ],
            "dispatched": {
                call_id: [
                    list(record.client.path),
                    record.seq,
                    record.weight,
                    record.extend_tokens,
                    record.output_tokens,
                    list(record.alone),
                    record.unpaid,
                ]
                for call_id, record in self._dispatched.items()
            },
        }

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._deficits.restore(state["deficits"])
        self._seq = state["seq"]
        self._queued, self._queues, self._restricted = {}, {}, {}
        self._index.clear()
        self._dispatched = {}
        for call_id, plain in state["dispatched"].items():
            path, seq, weight, extend, output, alone, unpaid = plain
            client = self._deficits.known(tuple(path))
            client.busy += 1
            self._dispatched[call_id] = _Dispatched(
                client, seq, weight, extend, output, tuple(alone), unpaid
            )
        for call_id, seq, extend_tokens, output_tokens in state["queue"]:
            call = calls[call_id]
            client = self._deficits.arrive(call.client)
            self._place(_Queued(call, client, seq, extend_tokens, output_tokens))


def _longer(cached_blocks: int, blocks: int) -> int:
    """Return the rank of a match: its length, as Algorithm 1 has it."""
    return cached_blocks
