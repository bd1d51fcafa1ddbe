"""Weighted service counter (FairServe 4.3, Algorithm 1 lines 12-18 and 28-48).

A client's counter grows by the slice of its app's typical call that each of its calls uses, so a call
of exactly the expected size costs 1 whatever the app; the client with the smallest counter is served,
calls of interactions under way first. Departures, each an option with the paper's value available
(ALGORITHMS section 3 has the measurements): ``charge`` (the paper: ``finish``), ``interaction_slack``
(``inf``), ``in_progress`` (``batch``), ``locality_slack`` (0), ``max_bypass`` (0: never),
``cached_weight`` (1), ``normalise``, ``run_priority`` (``arrival``), ``run_order`` (``arrival``),
``weight_cap`` (infinite).

A client is a path of levels (:mod:`fairserve.scheduling.counters`) and every rule holds by levels: the
least served client is found level by level, and a client is within a slack when at each level its
counter is at most the smallest among its queued siblings plus the slack. So a tenant's share does not
grow with the users that it names, and a slack's bound holds among tenants and among a tenant's users.

Bound: let U be the largest slice of a call, expected or used, over its client's weight, R the most
calls that a client has dispatched at a time, and S the larger slack. Counters of siblings with calls
queued differ by at most ``S + 2 R U`` at any time. Proof. A counter is received service plus
reservations. Let the client with the larger counter have been selected last at t, when m was the
smallest counter. It was at most m + S then, and grows until its next selection only by what its
dispatched calls cost: R U at most, as a call is charged U at most in all, its reservation included.
Received service never falls but by refunds (of calls that a worker failed, which are queued again). So
each client's stays at m - R U or above, and one that arrives later is lifted to no less. With
``charge="finish"`` nothing is reserved, R calls go before the first is charged; the bound is the same.

Those rules say whose run is next. Which of its queued calls goes is ``run_order``'s: with
``critical_path`` the one with the most expected output between it and the end of the run, so that the
run is over sooner, and its client is charged and passed over as before. A call that was chosen for what
is cached of it gives way only to one of which as much is.

Cost of a selection: O(log siblings) per level for the least served client, O(clients) in the groups of
calls with the longest matches (:mod:`fairserve.scheduling.waiting_index`), where nothing matches
O(clients with runs under way), and O(log calls) of the run.

Charge and weight are the same function of a call, or the difference would be service that a client gets
for nothing: with cached tokens charged at 0 and weights from whole prompts, a cached prompt of 16,000
tokens bought 35 times the service.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import Call, ClientPath, TokenUsage
from fairserve.scheduling.base import Feeder
from fairserve.scheduling.cost import SliceWeights
from fairserve.scheduling.counter_node import Node
from fairserve.scheduling.counters import Factors, VirtualCounters
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeder.earliest import Earliest, discard_from
from fairserve.scheduling.feeder.slice_charges import SliceCharges
from fairserve.scheduling.feeder.under_way import UnderWay, Within
from fairserve.scheduling.feeder.weight_cap import WeightCap
from fairserve.scheduling.feeder.wsc_options import WscOptions
from fairserve.scheduling.locality import Locality
from fairserve.scheduling.waiting_index import WaitingIndex

_AS_WELL_CACHED = 0.1
"""Shares of prompts that are cached differ by so much at most."""


@dataclass(slots=True)
class _Queued:
    call: Call
    seq: int
    bypassed: int = 0


class WscFeeder:
    """Serves the client that has received the least of what its apps typically use."""

    def __init__(
        self, directory: Directory, locality: Locality, options: WscOptions = WscOptions()
    ) -> None:
        self.options = options
        self._directory = directory
        self._locality = locality
        self._counters = VirtualCounters()
        self._charges = SliceCharges(
            self._counters,
            SliceWeights(options.alpha, options.beta, options.gamma),
            reserves=options.charge == "expected",
            cached_weight=options.cached_weight,
            normalise=options.normalise,
            currency=options.currency,
        )
        self._cap = WeightCap(options.weight_cap, directory, self._charges.typical_of)
        self._index = WaitingIndex(locality.tree)
        self._seq = 0
        self._clients: dict[Node, None] = {}
        """Clients with queued calls, which a node's ``queue`` has, the earliest first."""
        self._homes: dict[str, Node] = {}
        """Client of every queued call."""
        self._critical_path = options.run_order == "critical_path"
        self._runs: dict[str, set[str]] = {}
        """Queued calls by interaction."""
        self._ways: dict[str, Earliest[tuple[float, int]]] = {}
        """Those of them whose way to the end of the run is known, the longest first."""
        self._by_progress = options.interaction_priority and options.run_priority == "progress"
        self._under_way = UnderWay(by_progress=self._by_progress)
        self._batch_only = options.in_progress == "batch"
        self._batch: dict[str, str] = {}
        """With ``batch``, the interaction of every dispatched call."""
        self._others: tuple[Feeder, ...] = ()

    def __len__(self) -> int:
        """Number of queued calls."""
        return len(self._homes)

    def counter(self, path: ClientPath) -> float:
        """The counter of a client or of a level above, in typical calls; 0 if it is not known."""
        return self._counters.value(path)

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """The smallest counter of the queued ones one level below."""
        return self._counters.minimum(path) if self._counters.queued_below(path) else None

    def waiting(self) -> Iterable[Call]:
        """The queued calls."""
        return [entry.call for node in self._clients for entry in node.queue.values()]

    # --- the queue --------------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """Queue a call, lifting its client. Raises ValueError for an id that is queued already."""
        if call.call_id in self._homes:
            raise ValueError(f"call {call.call_id!r} is queued already")
        self._seq += 1
        self._enqueue(_Queued(call, self._seq), front=False)

    def _enqueue(self, entry: _Queued, *, front: bool) -> None:
        node = self._counters.arrive(entry.call.client, entry.seq)
        self._place(node, entry)
        if front:
            node.queue.move_to_end(entry.call.call_id, last=False)

    def _place(self, node: Node, entry: _Queued) -> None:
        call = entry.call
        if node.queue is None:
            node.queue = OrderedDict()
        node.queue[call.call_id] = entry
        self._clients[node] = None
        self._homes[call.call_id] = node
        self._runs.setdefault(call.interaction_id, set()).add(call.call_id)
        if self._critical_path and call.remaining_tokens > 0:
            ways = self._ways.setdefault(call.interaction_id, Earliest())
            ways.add(call.call_id, (-call.remaining_tokens, entry.seq))
        if call.interaction_id in self._under_way:
            self._under_way.add(node, call, entry.seq)
        if self.options.locality_slack:
            keys = self._locality.keys(call.call_id)
            self._index.add(call.call_id, keys, node, entry.seq)

    def _dequeue(self, call_id: str) -> tuple[_Queued, int | None]:
        """Take a call out; also the sequence number of its client's next one."""
        self._index.remove(call_id)
        node = self._homes.pop(call_id)
        entry: _Queued = node.queue.pop(call_id)
        discard_from(self._runs, entry.call.interaction_id, call_id)
        discard_from(self._ways, entry.call.interaction_id, call_id)
        self._under_way.discard(node, call_id)
        if node.queue:
            return entry, _first(node).seq
        del self._clients[node]
        return entry, None

    def remove(self, call_id: str) -> Call | None:
        """Drop a queued call."""
        node = self._homes.get(call_id)
        if node is None:
            return None
        entry, following = self._dequeue(call_id)
        self._counters.leave(node, following)
        return entry.call

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Give queued calls another client. O(levels * log siblings) per call.

        A call arrives at its new path before it leaves the old one: levels in both paths are not
        lifted, and a level that is new to the tree begins at the least served of its siblings.
        """
        for call_id in sorted(paths, key=lambda call_id: self._entry(call_id).seq):
            before = self._homes[call_id]
            entry, following = self._dequeue(call_id)
            entry.call.client = paths[call_id]
            self._enqueue(entry, front=False)
            self._counters.leave(before, following)

    def interaction_ended(self, interaction_id: str) -> None:
        """Its calls have priority no longer."""
        self._under_way.end(interaction_id)
        for call_id in self._runs.get(interaction_id, ()):
            self._under_way.discard(self._homes[call_id], call_id)

    # --- the feeders of other models --------------------------------------------------------------

    def share(self, others: Sequence[Feeder]) -> None:
        """A client's charges count in all of them, and a run under way is so in all."""
        self._others = tuple(others)
        self._charges.listener = self._publish_charge if others else None
        for other in others:
            for interaction_id in self._under_way.interactions:
                other.begun_elsewhere(interaction_id)

    def _publish_charge(
        self, client: ClientPath, served: float, reserved: float, factors: Factors
    ) -> None:
        for other in self._others:
            other.served_elsewhere(client, served, reserved, factors)

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: Factors
    ) -> None:
        """Typical calls there count as typical calls here, whatever the models."""
        self._counters.charge_elsewhere(client, served, reserved, factors)

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Its queued calls have priority here, too. With ``batch`` only this model's batch counts."""
        if not self._batch_only:
            self._prefer(interaction_id)

    def _prefer(self, interaction_id: str) -> None:
        if self._under_way.begin(interaction_id):
            for call_id in self._runs.get(interaction_id, ()):
                entry = self._entry(call_id)
                self._under_way.add(self._homes[call_id], entry.call, entry.seq)

    def _begin(self, interaction_id: str) -> None:
        """A call of the interaction is dispatched: its queued calls have priority from now on."""
        self._prefer(interaction_id)
        for other in self._others:
            other.begun_elsewhere(interaction_id)

    # --- selection --------------------------------------------------------------------------------

    def peek(
        self, open_workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """Algorithm 1 lines 31-38, within the slacks. Deterministic. O(excluded) more with those."""
        if not self._homes:
            return None
        if not excluded:
            return self._select(open_workers, excluded)
        left = Counter(self._homes[call_id] for call_id in excluded if call_id in self._homes)
        away = [node for node, calls in left.items() if calls == len(node.queue)]
        if len(away) == len(self._clients):
            return None
        with self._counters.hidden(away):
            return self._select(open_workers, excluded)

    def _select(self, open_workers: Collection[str], excluded: Collection[str]) -> Call:
        least = self._counters.least().queue.values()
        oldest = next(entry for entry in least if entry.call.call_id not in excluded)
        if self.options.max_bypass and oldest.bypassed >= self.options.max_bypass:
            return self._first_of_run(oldest, excluded).call
        chosen = self._longest_match(open_workers, excluded)
        if chosen is not None and self._worth(chosen, oldest, open_workers):
            nearest = self._nearer_its_end(chosen, open_workers, excluded)
            return self._first_of_run(nearest, excluded, open_workers).call
        first = self._under_way_first(excluded) if self.options.interaction_priority else None
        return self._first_of_run(first or oldest, excluded).call

    def _first_of_run(
        self, chosen: _Queued, excluded: Collection[str], workers: Collection[str] | None = None
    ) -> _Queued:
        """The call of its run that goes in its place, or itself.

        With ``workers`` only one of whose prompt as many tokens are cached at one of them.
        """
        ways = self._ways.get(chosen.call.interaction_id)
        if ways is None:
            return chosen
        first = self._entry(ways.first()[1])
        if first.call.call_id in excluded or not self._leads(first.call, chosen.call):
            return chosen
        if workers is not None:
            matched = self._locality.matched_tokens
            if matched(first.call, workers) < matched(chosen.call, workers):
                return chosen
        return first

    def _leads(self, call: Call, other: Call) -> bool:
        """Whether it goes before the other one, since both are of one run."""
        return (
            self._critical_path
            and call.interaction_id == other.interaction_id
            and call.remaining_tokens > other.remaining_tokens
        )

    def _worth(self, chosen: _Queued, oldest: _Queued, open_workers: Collection[str]) -> bool:
        """Whether what a match saves is worth that its client goes before the least served one."""
        node = self._homes[chosen.call.call_id]
        if not self.options.locality_gain or node is self._homes[oldest.call.call_id]:
            return True
        gain = self._cached_share(chosen.call, open_workers)
        gain -= self._cached_share(oldest.call, open_workers)
        return (
            gain > 0 and self._counters.reach(self.options.locality_slack * gain)(node) is not None
        )

    def _cached_share(self, call: Call, open_workers: Collection[str]) -> float:
        return self._locality.matched_tokens(call, open_workers) / max(1, call.prompt_tokens)

    def peek_hit(
        self, workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """The longest match at one of these workers, of clients within ``locality_slack``.

        Only if its run is under way: it is the run's own context that is lost if the call waits. What
        goes so counts against ``max_bypass``, but is not stopped by it: nobody else could go there.
        """
        chosen = self._longest_match(workers, excluded)
        if chosen is None or chosen.call.interaction_id not in self._under_way:
            return None
        first, share = self._first_of_run(chosen, excluded, workers), self._cached_share
        if first is not chosen and share(first.call, workers) < share(chosen.call, workers):
            return chosen.call  # as many tokens of a longer prompt may be too few for a hit
        return first.call

    def _entry(self, call_id: str) -> _Queued:
        entry: _Queued = self._homes[call_id].queue[call_id]
        return entry

    def _longest_match(
        self, open_workers: Collection[str], excluded: Collection[str]
    ) -> _Queued | None:
        """Among clients within ``locality_slack`` the longest match at an open worker.

        Ties go to the smaller counter, compared level by level, then to the earlier arrival.
        """
        slack = self.options.locality_slack
        if not slack:
            return None
        best: tuple[int, tuple[float, ...], int, str] | None = None
        within = self._counters.reach(slack)
        mask = self._locality.workers.mask(open_workers)
        for depth, match, group in self._index.longest_first(mask):
            if best is not None:
                if depth < -best[0]:
                    break
                if match < -best[0]:
                    continue
            for client, calls in group.calls.items():
                first = calls[0]
                if excluded and first[1] in excluded:
                    allowed = (each for each in calls if each[1] not in excluded)
                    if (found := next(allowed, None)) is None:
                        continue
                    first = found
                counters = within(client)
                if counters is not None:
                    key = (-match, counters, *first)
                    if best is None or key < best:
                        best = key
        return None if best is None else self._entry(best[3])

    def _within_slack(self) -> Within:
        return self._counters.reach(self.options.interaction_slack)

    def _under_way_first(self, excluded: Collection[str]) -> _Queued | None:
        """The first call of a run under way, of the clients within the slack."""
        in_order = self._under_way.in_order(self._within_slack(), excluded)
        return next(map(self._entry, in_order), None)

    def _nearer_its_end(
        self, chosen: _Queued, open_workers: Collection[str], excluded: Collection[str]
    ) -> _Queued:
        """The call of a run nearer its end that goes in the place of one chosen for its match.

        Both runs are under way, and about as much of its prompt is cached.
        """
        if not self._by_progress or chosen.call.interaction_id not in self._under_way:
            return chosen
        least = self._cached_share(chosen.call, open_workers) - _AS_WELL_CACHED
        for call_id in self._under_way.in_order(self._within_slack(), excluded):
            entry = self._entry(call_id)
            if entry is chosen or self._cached_share(entry.call, open_workers) >= least:
                return entry
        return chosen

    # --- charges ----------------------------------------------------------------------------------

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Take a call out, reserve its expected slice; raises KeyError if it is not queued."""
        node = self._homes[call_id]
        oldest = _first(self._counters.least())
        if oldest.call.call_id != call_id and not self._leads(
            self._entry(call_id).call, oldest.call
        ):
            oldest.bypassed += 1
        entry, following = self._dequeue(call_id)
        self._counters.dispatch(node, following, upcoming=False)
        call = entry.call
        if self._batch_only:
            self._batch[call_id] = call.interaction_id
        self._begin(call.interaction_id)
        return self._charges.begin(
            call,
            node,
            entry.seq,
            cached_tokens,
            profile=self._directory.profile(call.app),
            weights=self._directory.weights(call.tenant, call.app, call.user),
            most_typical=self._cap.of_dispatched(call),
        )

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Real service replaces what was reserved for it; beyond that it adds."""
        self._charges.charge(call_id, usage)

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """The same for output tokens alone."""
        self._charges.decoded(totals)

    def finish(self, call_id: str, usage: TokenUsage) -> float:
        """Charge what was used in all, release what was reserved and not used."""
        charged = self._charges.finish(call_id, usage)
        self._leave_batch(call_id)
        return charged

    def _leave_batch(self, call_id: str) -> None:
        """With ``batch``, an interaction without a dispatched call has no priority. O(dispatched)."""
        interaction_id = self._batch.pop(call_id, None)
        if interaction_id is not None and interaction_id not in self._batch.values():
            self.interaction_ended(interaction_id)

    def requeue(self, call: Call) -> None:
        """Its worker failed: take back every charge and put it first among its client's calls."""
        seq = self._charges.uncharge(call.call_id)
        self._leave_batch(call.call_id)
        self._enqueue(_Queued(call, seq), front=True)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values, calls by id."""
        return {
            "counters": self._counters.snapshot(),
            "seq": self._seq,
            "queue": [
                [
                    list(node.path),
                    [[e.call.call_id, e.seq, e.bypassed] for e in node.queue.values()],
                ]
                for node in self._clients
            ],
            "dispatched": self._charges.snapshot(),
            "under_way": self._under_way.interactions,
            "batch": dict(self._batch),
            "weight_cap": self._cap.snapshot(),
        }

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._counters.restore(state["counters"])
        self._seq = state["seq"]
        self._clients, self._homes, self._runs = {}, {}, {}
        self._ways = {}
        self._index.clear()
        self._under_way.restore(state["under_way"])
        self._charges.restore(state["dispatched"])
        self._batch = dict(state["batch"])
        self._cap.restore(state.get("weight_cap", {}))
        for path, entries in state["queue"]:
            node = self._counters.client(tuple(path))
            for call_id, seq, bypassed in entries:
                self._place(node, _Queued(calls[call_id], seq, bypassed))


def _first(node: Node) -> _Queued:
    """The earliest queued call of a client that has one."""
    entry: _Queued = next(iter(node.queue.values()))
    return entry
