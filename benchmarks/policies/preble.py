"""Preble (Srivatsa et al., "Efficient Distributed Prompt Scheduling"): exploit caches, explore by load.

E2: if recent prompts match more than ``exploit_share`` of a prompt, the candidates are the workers
to which its nearest allocated prefix was sent, otherwise all. The candidate with the lowest cost is
chosen: its load (:mod:`fairserve.benchmarks.policies.preble_loads`) over a window of three minutes,
plus the prefill of the blocks that the call would evict there, least recently used first. When the
loads of shared nodes differ by ``rebalance_ratio``, nodes move from the most to the least loaded
worker, the cheapest first; a worker's only node is assigned to both.

Corrections of the published code, as intended by the paper: its argmin over some of the workers
mistakes an index in the list of candidates for a worker; a prompt seen completely before counts as
a match, not as a new node; a call allocates its prefix to its worker, not to all candidates.
Departures: the only node is shared without the test of its TTFT; at most one pass over the nodes
per ``workers`` calls.

The dispatcher reports the time (:meth:`Preble.tick`) and the start of calls
(:meth:`Preble.started`). Without these the window is the last ``window_calls`` calls and the time
per token stays ``token_s``. A decision costs O(workers + nodes on its path + evicted nodes), each
with a binary search. Weakness: no fairness at all; the clients of a hot prefix wait for its worker.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.benchmarks.policies.preble_loads import PrebleLoads
from fairserve.benchmarks.policies.preble_options import PrebleOptions
from fairserve.benchmarks.policies.request_tree import (
    RequestNode,
    RequestTree,
    Statistics,
    important_above,
    path_of,
    subtree_of,
)
from fairserve.benchmarks.policies.running_median import RunningMedian
from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.locality.locality import Locality


@dataclass(slots=True)
class _Recent:
    """A call in the window. It pins ``leaf``."""

    at_s: float
    leaf: RequestNode
    statistics: Statistics
    hit_tokens: int
    prompt_tokens: int


@dataclass(slots=True)
class _Running:
    """A call at a worker (None: the worker was lost). It pins ``leaf``."""

    leaf: RequestNode
    worker_id: str | None
    started_s: float | None = None


class Preble:
    """The cluster router of Preble."""

    def __init__(self, locality: Locality, options: PrebleOptions = PrebleOptions()) -> None:
        self.options = options
        self._locality = locality
        self._tree = RequestTree(self._on_split, self._on_drop)
        self._loads = PrebleLoads(options, locality.block_tokens)
        self._held: dict[str, OrderedDict[int, None]] = {}
        """Nodes sent to each worker, least recently used first; workers in the order of joining."""
        self._important: dict[int, Statistics] = {}
        """Statistics by the serial number of the node."""
        self._window: deque[_Recent] = deque()
        self._running: dict[str, _Running] = {}
        self._calls = 0
        self._rebalanced_at = 0
        self._clock_s = 0.0
        self._ticked_s: float | None = None

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Advance the time to ``now_s`` (monotonic). After ``restore`` the first tick only sets it."""
        if self._ticked_s is not None:
            self._clock_s += max(0.0, now_s - self._ticked_s)
        self._ticked_s = now_s
        while self._window and self._window[0].at_s < self._clock_s - self.options.window_s:
            self._expire()

    def started(self, call_id: str) -> None:
        """Record that a running call left its worker's queue; unknown ones are ignored."""
        running = self._running.get(call_id)
        if running is not None and running.started_s is None and self._ticked_s is not None:
            running.started_s = self._clock_s

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker without load, since its share of earlier calls is unknown.

        Raises ValueError if it was added before.
        """
        self._loads.add_worker(worker_id)
        self._held[worker_id] = OrderedDict()

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker and all allocations to it. O(nodes). Unknown workers are ignored."""
        if worker_id not in self._held:
            return
        for node in self._tree.nodes.values():
            node.allocated.pop(worker_id, None)
            node.references.pop(worker_id, None)
            self._loads.recount(node)
        for running in self._running.values():
            if running.worker_id == worker_id:
                running.worker_id = None
        self._loads.remove_worker(worker_id)
        del self._held[worker_id]

    # --- selection --------------------------------------------------------------------------------

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return an open worker by E2; ties by the order of joining. Changes nothing."""
        usable = [worker for worker in self._held if worker in open_workers]
        if len(usable) < 2:
            return usable[0] if usable else None
        matched, node = self._match(call)
        candidates = usable
        if matched > self.options.exploit_share * call.prompt_tokens:
            for above in path_of(node):
                allocated = [worker for worker in usable if worker in above.allocated]
                if allocated:
                    candidates = allocated
                    break
        if len(candidates) == 1:
            return candidates[0]
        new_tokens = call.prompt_tokens - matched
        return min(candidates, key=lambda worker: self.cost_ns(worker, new_tokens))

    def cost_ns(self, worker_id: str, new_tokens: int = 0) -> float:
        """Return the load of a worker plus the prefill time of blocks evicted for ``new_tokens``."""
        cost = self._loads.cost_ns(worker_id)
        return cost + (self._eviction_ns(worker_id, new_tokens) if self.options.eviction else 0.0)

    def _match(self, call: Call) -> tuple[int, RequestNode]:
        """Return the matched tokens and the node where the match ends."""
        blocks, node = self._tree.find(self._locality.keys(call.call_id))
        return min(blocks * self._locality.block_tokens, call.prompt_tokens), node

    def _eviction_ns(self, worker_id: str, new_tokens: int) -> float:
        """Return the prefill time of the nodes that this many tokens would evict from a full cache."""
        cost, left = 0.0, new_tokens
        for serial in self._held[worker_id]:
            if left <= 0:
                break
            node = self._tree.nodes[serial]
            if worker_id in node.references or not self._cached(node, worker_id):
                continue
            left -= len(node.keys) * self._locality.block_tokens
            if node.statistics is not None:
                cost += node.statistics.calls * self._loads.miss_ns(node, node.statistics)
        return cost

    def _cached(self, node: RequestNode, worker_id: str) -> bool:
        tree = self._locality.tree
        return tree.holds(worker_id, tree.holders(node.keys[-1]))

    # --- life cycle of a call ---------------------------------------------------------------------

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Insert the prompt, count it, rebalance if due. Raises KeyError for an unknown worker."""
        held = self._held[worker_id]
        if call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is dispatched already")
        matched, _ = self._match(call)
        leaf = self._tree.insert(self._locality.keys(call.call_id))
        leaf.pins += 2  # one pin by the window, one while it runs
        statistics = self._statistics_of(important_above(leaf))
        statistics.calls += 1
        statistics.hit_tokens += matched
        statistics.prompt_tokens += call.prompt_tokens
        for node in path_of(leaf):  # the leaf first, so that parents are always more recent
            node.allocated[worker_id] = None
            node.references[worker_id] = node.references.get(worker_id, 0) + 1
            if node.parent is not None:
                held[node.serial] = None
                held.move_to_end(node.serial)
            self._loads.recount(node)
        self._forget_evicted(worker_id)
        self._window.append(_Recent(self._clock_s, leaf, statistics, matched, call.prompt_tokens))
        self._running[call.call_id] = _Running(leaf, worker_id)
        if len(self._window) > self.options.window_calls:
            self._expire()
        self._calls += 1
        self._rebalance_if_due()

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Stop counting the call; record its output, and its time per token if known."""
        running = self._running.pop(call.call_id, None)
        if running is None:
            return
        statistics = important_above(running.leaf).statistics
        if statistics is not None and output_tokens > 1:
            statistics.outputs.add(output_tokens)
            self._loads.recount(statistics.node)
        at = running.worker_id
        if at is not None:
            for node in path_of(running.leaf):
                node.references[at] -= 1
                if not node.references[at]:
                    del node.references[at]
                self._loads.recount(node)
            if running.started_s is not None and output_tokens > 1:
                took_s = self._clock_s - running.started_s
                self._loads.token_s[at].add(took_s / output_tokens)
        self._tree.unpin(running.leaf)

    def _statistics_of(self, node: RequestNode) -> Statistics:
        if node.statistics is None:
            node.statistics = Statistics(node, RunningMedian(self.options.medians_of))
            self._important[node.serial] = node.statistics
        return node.statistics

    def _expire(self) -> None:
        """Drop the oldest call from the window; nodes without calls in it lose their allocation."""
        recent = self._window.popleft()
        statistics = recent.statistics
        statistics.calls -= 1
        statistics.hit_tokens -= recent.hit_tokens
        statistics.prompt_tokens -= recent.prompt_tokens
        node = statistics.node
        self._loads.recount(node)
        if not statistics.calls:
            del self._important[node.serial]
            node.statistics = None
            node.allocated.clear()
        self._tree.unpin(recent.leaf)

    def _forget_evicted(self, worker_id: str) -> None:
        """Remove the least recent nodes, which the cache has dropped, from the worker's list."""
        held = self._held[worker_id]
        while held:
            node = self._tree.nodes[next(iter(held))]
            if worker_id in node.references or self._cached(node, worker_id):
                return
            del held[node.serial]

    def _on_split(self, upper: RequestNode, lower: RequestNode) -> None:
        """Move the statistics up if the upper part is now important; it counts as just used."""
        statistics = lower.statistics
        if statistics is not None:
            if upper.important and not lower.important:
                del self._important[lower.serial]
                self._important[upper.serial] = statistics
                lower.statistics, upper.statistics, statistics.node = None, statistics, upper
            self._loads.recount(statistics.node)
        for held in self._held.values():
            if lower.serial in held:
                held[upper.serial] = None

    def _on_drop(self, node: RequestNode) -> None:
        """Forget a node that is not on any worker's list any more."""
        for held in self._held.values():
            held.pop(node.serial, None)

    # --- rebalancing ------------------------------------------------------------------------------

    def _rebalance_if_due(self) -> None:
        ratio, workers = self.options.rebalance_ratio, len(self._held)
        if ratio is None or self._calls < self.options.rebalance_after * workers:
            return
        if self._calls - self._rebalanced_at < workers:
            return
        costs = {worker: self._loads.shared_cost_ns(worker) for worker in self._held}
        if max(costs.values()) >= ratio * min(costs.values()):
            self._rebalanced_at = self._calls
            self._rebalance(costs, ratio)

    def _rebalance(self, costs: dict[str, float], ratio: float) -> None:
        """Move nodes from the most loaded worker to the least loaded, then from the next one."""
        order = sorted(costs, key=lambda worker: -costs[worker])
        least = order[-1]
        for most in order[:-1]:
            if not costs[most] or costs[most] < ratio * costs[least]:
                return
            movable = sorted(
                (self._loads.node_cost_ns(statistics, most), serial)
                for serial, statistics in self._important.items()
                if statistics.calls > 1
                and statistics.node.important
                and most in statistics.node.allocated
            )
            if len(movable) == 1:
                cost, serial = movable[0]
                node = self._tree.nodes[serial]
                if least not in node.allocated:
                    node.allocated[least] = None
                    self._loads.recount(node)
                    costs[most] -= cost / 2
                    costs[least] += cost / 2
                continue
            for cost, serial in movable:
                if costs[most] < costs[least] + cost:
                    break
                costs[most] -= cost
                costs[least] += cost
                for below in subtree_of(self._tree.nodes[serial]):
                    below.allocated = {least: None}
                    self._loads.recount(below)

    # --- state ------------------------------------------------------------------------------------

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """Return no deficits: this router has none."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values. Tick just before, and just after ``restore``."""
        return {
            "tree": self._tree.snapshot(),
            "token_s": [[w, self._loads.token_s[w].values()] for w in self._held],
            "held": [[worker, list(held)] for worker, held in self._held.items()],
            "important": [
                [serial, s.calls, s.hit_tokens, s.prompt_tokens, s.outputs.values()]
                for serial, s in self._important.items()
            ],
            "window": [
                [r.at_s, r.leaf.serial, r.statistics.node.serial, r.hit_tokens, r.prompt_tokens]
                for r in self._window
            ],
            "running": [
                [call_id, running.leaf.serial, running.worker_id, running.started_s]
                for call_id, running in self._running.items()
            ],
            "calls": self._calls,
            "rebalanced_at": self._rebalanced_at,
            "clock_s": self._clock_s,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._tree.restore(state["tree"])
        nodes = self._tree.nodes
        self._loads = PrebleLoads(self.options, self._locality.block_tokens)
        for worker, values in state["token_s"]:
            self._loads.add_worker(worker, values)
        self._held = {worker: OrderedDict.fromkeys(held) for worker, held in state["held"]}
        self._important = {}
        for serial, calls, hit_tokens, prompt_tokens, outputs in state["important"]:
            statistics = self._statistics_of(nodes[serial])
            statistics.calls = calls
            statistics.hit_tokens, statistics.prompt_tokens = hit_tokens, prompt_tokens
            statistics.outputs = RunningMedian(self.options.medians_of, outputs)
            self._loads.recount(nodes[serial])
        self._window = deque()
        for at_s, leaf, serial, hit_tokens, prompt_tokens in state["window"]:
            recent = _Recent(at_s, nodes[leaf], self._important[serial], hit_tokens, prompt_tokens)
            self._window.append(recent)
            nodes[leaf].pins += 1
        self._running = {}
        for call_id, leaf, worker_id, started_s in state["running"]:
            self._running[call_id] = _Running(nodes[leaf], worker_id, started_s)
            nodes[leaf].pins += 1
        self._calls, self._rebalanced_at = state["calls"], state["rebalanced_at"]
        self._clock_s, self._ticked_s = state["clock_s"], None
