"""Preble's load per worker, updated node by node.

    sum over important nodes at w: miss rate * calls * prefill time / workers of the node
                                   + running calls * median output * median time per token of w

Each node remembers its contribution as integers (nanoseconds, thousandths of tokens), and subtracts
exactly that before it adds the next one. So a load takes O(1) to read and O(workers of the node) to
change, and leaves no residue. The time per token is multiplied when a load is read, since it
changes with every ended call.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.benchmarks.policies.preble_options import PrebleOptions
from fairserve.benchmarks.policies.request_tree import RequestNode, Statistics
from fairserve.benchmarks.policies.running_median import RunningMedian


@dataclass(slots=True)
class _Load:
    prefill_ns: int = 0
    output_mtokens: int = 0
    """Running calls times expected output, in thousandths of tokens, summed over nodes."""

    def change(self, amount: tuple[int, int], sign: int) -> None:
        self.prefill_ns += sign * amount[0]
        self.output_mtokens += sign * amount[1]


class PrebleLoads:
    """Loads of all workers: in total, and of the nodes that two or more calls share."""

    def __init__(self, options: PrebleOptions, block_tokens: int) -> None:
        self._options = options
        self._block_tokens = block_tokens
        self.token_s: dict[str, RunningMedian] = {}
        """Medians of the time per token, by worker in the order of joining."""
        self._all: dict[str, _Load] = {}
        self._shared: dict[str, _Load] = {}

    def add_worker(self, worker_id: str, token_s: list[float] | None = None) -> None:
        """Add a worker without load. Raises ValueError if it was added before."""
        if worker_id in self._all:
            raise ValueError(f"worker {worker_id!r} is known already")
        values = [self._options.token_s] if token_s is None else token_s
        self.token_s[worker_id] = RunningMedian(self._options.medians_of, values)
        self._all[worker_id] = _Load()
        self._shared[worker_id] = _Load()

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker to which no counted node is allocated any more."""
        del self.token_s[worker_id], self._all[worker_id], self._shared[worker_id]

    def recount(self, node: RequestNode) -> None:
        """Update the loads with the current contribution of the node's calls."""
        statistics = node.statistics
        if statistics is None:
            return
        self._count(statistics, -1)
        statistics.counted = {}
        if statistics.calls:
            prefill_ns = statistics.calls * self.miss_ns(node, statistics)
            share = round(prefill_ns / max(1, len(node.allocated)))
            outputs = statistics.outputs
            output = outputs.value() if len(outputs) else self._options.output_tokens
            expected = round(1000 * output)
            for worker in node.allocated:
                amount = (share, node.references.get(worker, 0) * expected)
                statistics.counted[worker] = amount
        statistics.shared = statistics.calls > 1
        self._count(statistics, 1)

    def _count(self, statistics: Statistics, sign: int) -> None:
        for worker, amount in statistics.counted.items():
            self._all[worker].change(amount, sign)
            if statistics.shared:
                self._shared[worker].change(amount, sign)

    def miss_ns(self, node: RequestNode, statistics: Statistics) -> float:
        """Return the mean time that a call below this node spends on computing it."""
        own, context = len(node.keys) * self._block_tokens, node.depth * self._block_tokens
        return statistics.miss_rate * self._options.prefill_ns(own, context)

    def _cost_ns(self, worker_id: str, prefill_ns: int, output_mtokens: int) -> float:
        return prefill_ns + output_mtokens * self.token_s[worker_id].value() * 1e6

    def cost_ns(self, worker_id: str) -> float:
        """Return the load of a worker."""
        load = self._all[worker_id]
        return self._cost_ns(worker_id, load.prefill_ns, load.output_mtokens)

    def shared_cost_ns(self, worker_id: str) -> float:
        """Return the part of the load caused by nodes of two or more calls."""
        load = self._shared[worker_id]
        return self._cost_ns(worker_id, load.prefill_ns, load.output_mtokens)

    def node_cost_ns(self, statistics: Statistics, worker_id: str) -> float:
        """Return the part of the load caused by one node; 0 if it is not allocated there."""
        return self._cost_ns(worker_id, *statistics.counted.get(worker_id, (0, 0)))
