"""Weighted service counter (FairServe 4.3, Algorithm 1 lines 12-18 and 27-48).

``u_i`` is the counter of user i. It increases by each call's use relative to the typical call of
its app, so a call of exactly the expected size costs 1 in every app. The paper's lines:

    12-18  a user with nothing queued is lifted as in VTC                    VirtualCounters.arrive
    31-35  if an interaction in progress has a call waiting: of these        WscFeeder._in_progress
           users the one with the smallest u_i, its earliest call
    36-38  else the user with the smallest u_i, its earliest call            WscFeeder._oldest
    39     take it out of the queue                                          WscFeeder.dispatch
    44-48  at the end: u_i += E_i (alpha L_I + beta L_S + gamma L_O) / w_aj  SliceCharges

Departures, each an option with the paper's value available (ALGORITHMS section 3 has the measurements):
``charge`` (the paper: ``finish``), ``interaction_slack`` (``inf``), ``in_progress`` (``batch``),
``locality_slack`` (0), ``max_bypass`` (0: never), ``cached_weight`` (1), ``normalise``, ``run_order``
(``arrival``), ``weight_cap`` (infinite).

A client is a path of levels (:mod:`fairserve.scheduling.fairness.counters`) and every rule applies
by level: the least served client is found level by level, and a client is within a slack if at each
level its counter is at most the smallest among its queued siblings plus the slack. So a tenant's
share does not grow with the users that it names, and a slack's bound holds among tenants and among
a tenant's users.

Bound: let U be the largest slice of a call, expected or used, over its client's weight, R the
maximum number of calls that a client has dispatched at a time, and S the larger slack. Counters of
siblings with queued calls differ by at most ``S + 2 R U`` at any time. Proof. A counter is received
service plus reservations. Let t be the last selection of the client with the larger counter, and m
the smallest counter at t. The larger counter was at most m + S then, and until its next selection
it increases only by the cost of its dispatched calls: at most R U, as a call is charged at most U
in total, its reservation included. Received service decreases only by refunds (of calls whose
worker failed, which are queued again). So each client's stays at or above m - R U, and one that
arrives later is lifted to no less. With ``charge="finish"`` nothing is reserved, and R calls are
dispatched before the first is charged; the bound is the same. Under a gate (``runs_first``) S is larger
below the outermost level, by at most twice the depth of the longest run that is not longer than usual.

These rules choose the run. ``run_order`` chooses among its queued calls: ``critical_path`` takes
the one with the most expected output on its path to the end of the run, so that the run ends
sooner; its client is charged and bypassed as before. A call chosen for its cached prefix is
replaced only by a call with an equally long cached prefix.

Cost of a selection: O(log siblings) per level for the least served client; the same for each bucket of
calls with the longest matches (:mod:`fairserve.scheduling.locality.waiting_index`), for the calls of
active runs if nothing matches, and for each restriction to workers while some calls are excluded; and
O(log calls) of the run.

Charge and weight are the same function of a call. Otherwise service would be free: with cached
tokens charged at 0 and weights from whole prompts, a cached prompt of 16,000 tokens bought 35 times
the service.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairserve.interactions.call import (
    UNRESTRICTED,
    Call,
    ClientPath,
    Restriction,
    TokenUsage,
)
from fairserve.interactions.lazy_heap import LazyHeap
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.scheduling.base import Feeder
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.fairness.counter_node import CounterNode
from fairserve.scheduling.fairness.counters import Factors, VirtualCounters
from fairserve.scheduling.fairness.lanes import Lanes, OpenLanes
from fairserve.scheduling.fairness.level_weights import Owner, efforts_by_level
from fairserve.scheduling.fairness.ranking import Ranked, Ranking, Within
from fairserve.scheduling.fairness.weight_cap import WeightCap
from fairserve.scheduling.feeders.active_runs import ActiveRuns
from fairserve.scheduling.feeders.slice_charges import SliceCharges
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.waiting_index import WaitingIndex


@dataclass(slots=True)
class _Queued:
    call: Call
    node: CounterNode
    """Its client."""
    seq: int
    bypassed: int = 0


class WscFeeder:
    """Feeder that serves the client with the least service, in typical calls of its apps."""

    def __init__(
        self, directory: Directory, locality: Locality, options: WscOptions = WscOptions()
    ) -> None:
        self.options = options
        self.runs_first = False
        """True if runs in progress precede all others of their tenant, as a gate needs."""
        self._directory = directory
        self._locality = locality
        self._counters = VirtualCounters()
        self._weights = SliceWeights(options.alpha, options.beta, options.gamma)
        self._trusts = options.currency == "slices" and options.normalise == "call"
        self._charges = SliceCharges(
            self._counters,
            self._weights,
            reserves=options.charge == "expected",
            cached_weight=options.cached_weight,
            normalise=options.normalise,
            currency=options.currency,
            margin=_margin(options),
        )
        self._cap = WeightCap(options.weight_cap, directory, self._charges.typical_of)
        self._falls = self._counters.record_falls()
        self._index = WaitingIndex(locality.tree, lambda: Ranking(self._falls), _sixteenths)
        self._lanes: Lanes | None = None
        """Queue by restriction, kept once a call was restricted to some workers."""
        self._seq = 0
        self._queued: dict[str, _Queued] = {}
        """Queued calls by id; a client's node has theirs by arrival in ``queue``."""
        self._critical_path = options.run_order == "critical_path"
        self._runs: dict[str, set[str]] = {}
        """Ids of queued calls by interaction."""
        self._ways: dict[str, LazyHeap[str]] = {}
        """Queued calls with a known path to the end of the run, longest first, by interaction."""
        self._active_runs = ActiveRuns(self._falls)
        self._batch_only = options.in_progress == "batch"
        self._batch: dict[str, str] = {}
        """Interaction of each dispatched call; used with ``in_progress="batch"``."""
        self._offered: tuple[str, tuple[bool, ...]] | None = None
        """Call of the last selection without some lanes, and whether siblings took part, by level."""
        self._others: tuple[Feeder, ...] = ()

    # --- Algorithm 1 ------------------------------------------------------------------------------

    def add(self, call: Call) -> None:
        """Queue a call and lift its client. Raises ValueError for an id that is queued already."""
        if call.call_id in self._queued:
            raise ValueError(f"call {call.call_id!r} is queued already")
        self._seq += 1
        self._enqueue(call, self._seq)

    def _enqueue(self, call: Call, seq: int, bypassed: int = 0) -> None:
        """Lift the client if it has nothing queued, then queue the call (lines 12-18 and 25)."""
        node = self._counters.arrive(call.client, seq)
        self._place(_Queued(call, node, seq, bypassed))

    def peek(
        self,
        open_workers: Collection[str],
        excluded: Collection[Restriction] = frozenset(),
        held: Collection[Restriction] = frozenset(),
    ) -> Call | None:
        """Return the next call (lines 31-38), within the slacks.

        ``held`` are restrictions with which no run may begin; its calls may continue. They are no
        reason to charge less for the call: a run that has no room wants the worker, too.
        """
        if not self._queued:
            return None
        if len(self._queued) == 1 and not excluded and not held:
            self._offered = None
            return next(iter(self._queued.values())).call
        begin = {*excluded, *held} if held else excluded
        lanes, mask = self._open_lanes(begin), self._locality.workers.mask(open_workers)
        oldest = self._oldest(lanes)
        call = self._match(oldest, mask, begin, lanes)
        if self._runs_precede(call, oldest):  # lines 31-35
            call = self._in_progress(excluded, lanes) or call
        if call is None and oldest is not None:  # lines 36-38
            call = self._first_of_run(oldest, begin).call
        return (
            None
            if call is None
            else self._offer(call, self._open_lanes(excluded) if held else lanes)
        )

    def peek_fair(self, workers: Collection[str], excluded: Collection[Restriction]) -> Call | None:
        """Return the next call if runs in progress had no precedence, except by their matches."""
        lanes = self._open_lanes(excluded)
        oldest = self._oldest(lanes)
        if oldest is None:
            return None
        match = self._match(oldest, self._locality.workers.mask(workers), excluded, lanes)
        return match or self._first_of_run(oldest, excluded).call

    def _offer(self, call: Call, lanes: OpenLanes | None) -> Call:
        """Note which siblings took part in the selection of a call, and return it."""
        self._offered = None
        if lanes is not None:
            self._offered = call.call_id, lanes.contended(self._queued[call.call_id].node)
        return call

    def has_begun(self, interaction_id: str) -> bool:
        """Return whether a run is active."""
        return interaction_id in self._active_runs

    def waits(self, interaction_id: str) -> bool:
        """Return whether a call of a run is queued."""
        return interaction_id in self._runs

    @property
    def not_begun(self) -> int:
        """Return the number of queued calls whose runs are not active."""
        return len(self._queued) - len(self._active_runs)

    def charge_idle(self, owner: Owner, client: ClientPath, calls: float) -> None:
        """Charge a client for memory that it holds, as for so many typical calls."""
        efforts = efforts_by_level(self._directory.weights(*owner), len(client))
        self._counters.charge_elsewhere(client, calls, factors=efforts)

    def _open_lanes(self, excluded: Collection[Restriction]) -> OpenLanes | None:
        """Return the lanes without the excluded ones; None if nothing is excluded."""
        if not excluded:
            return None
        lanes = self._keep_lanes() if self._lanes is None else self._lanes
        return lanes.without(excluded)

    def _keep_lanes(self) -> Lanes:
        """Keep the queue by restriction from now on. O(queue), once."""
        lanes = self._lanes = Lanes(self._falls, self._counters.root)
        for call_id, entry in self._queued.items():
            lanes.add(entry.call.restriction, entry.node, entry.seq, call_id)
        return lanes

    def _reach(
        self, slack: float, lanes: OpenLanes | None, inner_slack: float | None = None
    ) -> Within:
        """Return a function that checks whether a client is within a slack, among these lanes."""
        smallest = CounterNode.smallest if lanes is None else lanes.smallest
        return self._counters.reach(slack, smallest, inner_slack)

    def _reach_of_run(self, lanes: OpenLanes | None, own: int) -> Within:
        """Return such a function for active runs whose own calls have cost at most so much."""
        slack = self.options.interaction_slack
        return self._reach(slack, lanes, slack + own)

    def _runs_precede(self, match: Call | None, oldest: _Queued | None) -> bool:
        """Return whether runs in progress precede a match and the least served client's oldest call."""
        if self.runs_first:
            return match is None or not self.has_begun(match.interaction_id)
        if match is not None or oldest is None or self._is_bypassed(oldest):
            return False
        return self.options.interaction_priority

    def _in_progress(
        self, excluded: Collection[Restriction], lanes: OpenLanes | None
    ) -> Call | None:
        """Return the next call of active runs within the slack (lines 31-35)."""
        call_id = self._active_runs.first(partial(self._reach_of_run, lanes), excluded)
        if call_id is None:
            return None
        return self._first_of_run(self._queued[call_id], excluded).call

    def _match(
        self,
        oldest: _Queued | None,
        mask: int,
        excluded: Collection[Restriction],
        lanes: OpenLanes | None,
    ) -> Call | None:
        """Return the call to serve for its cached prefix instead of the least served client's oldest."""
        if oldest is None or self._is_bypassed(oldest):
            return None
        chosen = self._greatest_share(mask, excluded, lanes)
        if chosen is None or not self._worth(chosen, oldest, mask, lanes):
            return None
        return self._first_of_run(chosen, excluded, mask).call

    def _oldest(self, lanes: OpenLanes | None) -> _Queued | None:
        """Return the earliest call of the least served client."""
        if not (self._queued if lanes is None else lanes):
            return None
        return self._first(self._counters.least()) if lanes is None else self._queued[lanes.first()]

    def _is_bypassed(self, oldest: _Queued) -> bool:
        return 0 < self.options.max_bypass <= oldest.bypassed

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Remove a call and reserve its expected slice (line 39). KeyError if it is not queued."""
        entry = self._queued[call_id]
        node = entry.node
        if len(self._queued) > 1:
            oldest = self._first(self._counters.least())
            if oldest is not entry and not self._precedes(entry.call, oldest.call):
                oldest.bypassed += 1
        following = self._dequeue(entry)
        self._counters.dispatch(node, following, upcoming=False)
        call = entry.call
        if self._batch_only:
            self._batch[call_id] = call.interaction_id
        self._prefer(call.interaction_id)
        for other in self._others:
            other.begun_elsewhere(call.interaction_id)
        profile = self._directory.profile(call.app)
        contended, wanted = self._competition(call_id, node)
        typical = self._charges.typical_of(profile, call.stage)
        return self._charges.begin(
            call,
            node,
            entry.seq,
            cached_tokens,
            typical=min(
                self._trusted(call, profile, typical, cached_tokens), self._cap.of_dispatched(call)
            ),
            weights=self._directory.weights(call.tenant, call.app, call.user),
            tier_weight=self._directory.tier_weight(call),
            contended=contended,
            wanted=wanted,
        )

    def _competition(
        self, call_id: str, node: CounterNode
    ) -> tuple[tuple[bool, ...], tuple[bool, ...] | None]:
        """Return the levels at which a sibling wanted the worker; twice if some calls were left out."""
        offered, self._offered = self._offered, None
        if offered is None or offered[0] != call_id:
            return (self._counters.contended(node) if self._others else ()), None
        return offered[1], offered[1]

    def _trusted(
        self, call: Call, profile: AppProfile, typical: float, cached_tokens: int
    ) -> float:
        """Return the size of a typical call as far as the tenant's declarations are trusted."""
        if not self._trusts:
            return typical
        trust = self._directory.trust
        if profile.believed_tokens is None or call.stage <= profile.seen_stages:
            return trust.begin(call.call_id, call.tenant, typical)
        return trust.begin_declared(
            call.call_id,
            call.tenant,
            typical,
            prompt=self._weights.prompt_slice(
                call.input_tokens, call.system_tokens, cached_tokens, self.options.cached_weight
            ),
            per_output=self._weights.gamma,
            most=self.options.declared_trust,
        )

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Charge a call for its usage so far; its reservation covers the expected part."""
        self._charges.charge(call_id, usage)

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """Charge calls for their output tokens so far."""
        self._charges.decoded(totals)

    def expect(self, call_id: str, output_tokens: int) -> None:
        """Raise the reservation of a call that reports no output before its end."""
        self._charges.expect(call_id, output_tokens)

    def finish(self, call_id: str, usage: TokenUsage) -> float:
        """Charge the total usage and release the rest of the reservation (lines 44-48)."""
        charged = self._charges.finish(call_id, usage)
        if self._trusts:
            tokens = self._weights.slice(usage, self.options.cached_weight)
            self._directory.trust.end(call_id, tokens, usage.output_tokens)
        self._leave_batch(call_id)
        return charged

    def requeue(self, call: Call) -> None:
        """Reverse the charges of a call whose worker failed, and queue it where it was."""
        seq = self._charges.uncharge(call.call_id)
        self._directory.trust.cancel(call.call_id)
        self._leave_batch(call.call_id)
        self._enqueue(call, seq)

    # --- departures: locality, progress and the order in a run ------------------------------------

    def _greatest_share(
        self, mask: int, excluded: Collection[Restriction], lanes: OpenLanes | None
    ) -> _Queued | None:
        """Return the call with the greatest cached share at an open worker, within ``locality_slack``.

        Ties go to the smaller counter, compared level by level, then to the earlier arrival.
        """
        slack = self.options.locality_slack
        if not slack:
            return None
        within = self._reach(slack, lanes)
        best: tuple[int, Ranked] | None = None
        for share, calls in self._index.at_holders(mask, excluded):
            if best is not None and share < -best[0]:
                break
            best = _better(best, share, calls.first(within))
        greatest = 0 if best is None else -best[0]
        for share, group in self._index.elsewhere(mask, greatest, excluded):
            if group.order is not None:
                best = _better(best, share, group.order.first(within))
                continue
            for call_id, (client, arrival) in group.calls.items():
                counters = within(client)
                if counters is not None:
                    best = _better(best, share, (counters, arrival, call_id))
        return None if best is None else self._queued[best[1][2]]

    def _worth(self, chosen: _Queued, oldest: _Queued, mask: int, lanes: OpenLanes | None) -> bool:
        """Return whether its cached tokens justify that a match overtakes the least served client."""
        if not self.options.locality_gain or chosen.node is oldest.node:
            return True
        gain = self._cached_share(chosen.call, mask) - self._cached_share(oldest.call, mask)
        slack = self.options.locality_slack * gain
        return gain > 0 and self._reach(slack, lanes)(chosen.node) is not None

    def _cached_share(self, call: Call, mask: int) -> float:
        return self._locality.match(call, mask)[0] / max(1, call.prompt_tokens)

    def _first_of_run(
        self,
        chosen: _Queued,
        excluded: Collection[Restriction],
        mask: int | None = None,
    ) -> _Queued:
        """Return the first call of the same run, possibly the call itself.

        With the ``mask`` of some workers a replacement must have as many tokens cached at one of them.
        """
        ways = self._ways.get(chosen.call.interaction_id)
        if ways is None:
            return chosen
        first = self._queued[ways.first()[1]]
        if first.call.restriction in excluded or not self._leads(first.call, chosen.call):
            return chosen
        match = self._locality.match
        if mask is not None and match(first.call, mask)[0] < match(chosen.call, mask)[0]:
            return chosen
        return first

    def _precedes(self, call: Call, other: Call) -> bool:
        """Return whether a call goes before another without bypassing it."""
        if self.runs_first and self.has_begun(call.interaction_id):
            return True
        return self._leads(call, other)

    def _leads(self, call: Call, other: Call) -> bool:
        """Return whether a call of a run precedes another call of the same run."""
        return (
            self._critical_path
            and call.interaction_id == other.interaction_id
            and call.remaining_tokens > other.remaining_tokens
        )

    # --- the queue --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._queued)

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls."""
        return [entry.call for entry in self._queued.values()]

    def _place(self, entry: _Queued) -> None:
        call, node, restriction = entry.call, entry.node, entry.call.restriction
        if node.queue is None:
            node.queue = LazyHeap()
        node.queue.set(call.call_id, entry.seq)
        self._queued[call.call_id] = entry
        self._runs.setdefault(call.interaction_id, set()).add(call.call_id)
        if self._critical_path and call.remaining_tokens > 0:
            ways = self._ways.setdefault(call.interaction_id, LazyHeap())
            ways.set(call.call_id, (-call.remaining_tokens, entry.seq))
        if call.interaction_id in self._active_runs:
            self._active_runs.add(node, call, entry.seq)
        if self.options.locality_slack:
            keys = self._locality.keys(call.call_id)
            self._index.add(call.call_id, keys, node, entry.seq, restriction)
        if self._lanes is not None:
            self._lanes.add(restriction, node, entry.seq, call.call_id)
        elif restriction is not UNRESTRICTED:
            self._keep_lanes()

    def _dequeue(self, entry: _Queued) -> int | None:
        """Remove a queued call; return the sequence number of its client's next one."""
        call, node = entry.call, entry.node
        call_id = call.call_id
        self._index.remove(call_id)
        del self._queued[call_id]
        node.queue.discard(call_id)
        if self._lanes is not None:
            self._lanes.discard(call.restriction, node, entry.seq, call_id)
        _discard_from(self._runs, call.interaction_id, call_id)
        _discard_from(self._ways, call.interaction_id, call_id)
        self._active_runs.discard(call_id)
        return self._first(node).seq if node.queue else None

    def _first(self, node: CounterNode) -> _Queued:
        """Return the earliest queued call of a client that has one."""
        return self._queued[node.queue.first()[1]]

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call and return it; None if it is not queued."""
        entry = self._queued.get(call_id)
        if entry is None:
            return None
        self._counters.leave(entry.node, self._dequeue(entry))
        return entry.call

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Move queued calls to other clients. Cost: O(levels * log siblings) per call.

        A call arrives at its new path before it leaves the old one: levels shared by both paths are
        not lifted, and a new level starts at the counter of its least served sibling.
        """
        for entry in sorted((self._queued[each] for each in paths), key=lambda entry: entry.seq):
            following = self._dequeue(entry)
            entry.call.client = paths[entry.call.call_id]
            self._enqueue(entry.call, entry.seq, entry.bypassed)
            self._counters.leave(entry.node, following)

    def interaction_ended(self, interaction_id: str) -> None:
        """End the priority of an interaction's calls."""
        self._active_runs.end(interaction_id)
        for call_id in self._runs.get(interaction_id, ()):
            self._active_runs.discard(call_id)

    def revoke(self, interaction_id: str) -> None:
        """End the priority of a run's calls, here and at the other models, until its next dispatch."""
        for feeder in (self, *self._others):
            feeder.interaction_ended(interaction_id)

    def _prefer(self, interaction_id: str) -> None:
        if self._active_runs.begin(interaction_id):
            for call_id in self._runs.get(interaction_id, ()):
                entry = self._queued[call_id]
                self._active_runs.add(entry.node, entry.call, entry.seq)

    def _leave_batch(self, call_id: str) -> None:
        """With ``batch``, end the priority of a run without a dispatched call. O(dispatched)."""
        interaction_id = self._batch.pop(call_id, None)
        if interaction_id is not None and interaction_id not in self._batch.values():
            self.interaction_ended(interaction_id)

    # --- the feeders of other models --------------------------------------------------------------

    def share(self, others: Sequence[Feeder]) -> None:
        """Share charges and active runs with the feeders of other models."""
        self._others = tuple(others)
        self._charges.listener = self._publish_charge if others else None
        for other in others:
            for interaction_id in self._active_runs.interactions:
                other.begun_elsewhere(interaction_id)

    def _publish_charge(
        self, client: ClientPath, served: float, reserved: float, factors: Factors
    ) -> None:
        for other in self._others:
            other.served_elsewhere(client, served, reserved, factors)

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: Factors
    ) -> None:
        """Charge a client for service by another model; typical calls count the same."""
        self._counters.charge_elsewhere(client, served, reserved, factors)

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Give an interaction priority here, too; with ``batch`` only this model's batch counts."""
        if not self._batch_only:
            self._prefer(interaction_id)

    # --- counters and state -----------------------------------------------------------------------

    def counter(self, path: ClientPath) -> float:
        """Return the counter of a client or an outer level, in typical calls; 0 if it is unknown."""
        return self._counters.value(path)

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """Return the smallest counter among the queued children of a level."""
        return self._counters.minimum(path) if self._counters.queued_below(path) else None

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, calls by id."""
        return {
            "counters": self._counters.snapshot(),
            "seq": self._seq,
            "queue": [
                [list(entry.node.path), call_id, entry.seq, entry.bypassed]
                for call_id, entry in self._queued.items()
            ],
            "large": self._index.large(),
            "dispatched": self._charges.snapshot(),
            "under_way": self._active_runs.interactions,
            "batch": dict(self._batch),
            "weight_cap": self._cap.snapshot(),
        }

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._counters.restore(state["counters"])
        self._falls = self._counters.record_falls()
        self._lanes = None
        self._seq = state["seq"]
        self._queued, self._runs = {}, {}
        self._ways = {}
        self._index.clear()
        self._active_runs.restore(state["under_way"], self._falls)
        self._charges.restore(state["dispatched"])
        self._batch = dict(state["batch"])
        self._cap.restore(state["weight_cap"])
        for path, call_id, seq, bypassed in state["queue"]:
            node = self._counters.client(tuple(path))
            self._place(_Queued(calls[call_id], node, seq, bypassed))
        self._index.enlarge(state["large"])


def _better(
    best: tuple[int, Ranked] | None, share: int, found: Ranked | None
) -> tuple[int, Ranked] | None:
    """Return the better of two calls, each as ``(-share, place)``: the greater share, then the place."""
    if found is None:
        return best
    key = (-share, found)
    return key if best is None or key < best else best


def _sixteenths(cached_blocks: int, blocks: int) -> int:
    """Return the sixteenths of a prompt that are cached, rounded down.

    By blocks the app with the longest system prompt would always have the longest match.
    """
    return 16 * cached_blocks // (blocks + 1)


def _margin(options: WscOptions) -> float:
    """Return by how much a client may stay behind siblings who cannot use its workers.

    It is a typical call more than the larger slack, so that the client is out of reach of the slacks
    where it waits beside them. An infinite slack has no such turn.
    """
    slacks = (options.interaction_slack, options.locality_slack)
    return 1.0 + max(slack for slack in (0.0, *slacks) if slack < math.inf)


def _discard_from(sets: dict[str, Any], key: str, call_id: str) -> None:
    """Remove a call from one of the sets; a set that becomes empty is removed, too."""
    found = sets.get(key)
    if found is not None:
        found.discard(call_id)
        if not found:
            del sets[key]
