"""Memory of the tree of all workers, as counted by the allocator.

The tree is built by a router's decisions while every allocation is traced; then everything except
the tree is released, and the remaining memory is the tree's. Each round builds another tree. Tokens
are counted by looking up in the finished tree every block that was ever inserted: *distinct* tokens
once, *held* tokens once for each worker that has them. *With block events* is also per distinct
token, for a tree in which a single block has been looked up, as happens when workers report
evictions.
"""

from __future__ import annotations

from fairserve.benchmarks.bench.calls import BenchCallSource
from fairserve.benchmarks.bench.decisions import WORKER_TOKENS, Decisions
from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import traced_memory
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.prefix_tree import PrefixTree

FIGURE = "tree_bytes_per_token"


class TreeMemory:
    """Memory of one tree per round, each with another seed."""

    def __init__(
        self, workers: int = 8, *, worker_tokens: int = WORKER_TOKENS, seed: int = 100
    ) -> None:
        self._workers, self._worker_tokens = workers, worker_tokens
        self._seed = seed

    def round(self) -> Reading:
        """Build one tree and measure its memory."""
        self._seed += 1
        with traced_memory() as kept_bytes:
            tree, calls = self._grow()
            allocated = kept_bytes()
            tree.holders(0)  # a tree may index single blocks only after the first look-up
            asked = kept_bytes()
        distinct, held = self._tokens(tree, calls)
        details = {
            "distinct_tokens": float(distinct),
            "held_tokens": float(held),
            "per_held_token_bytes": allocated / held,
            "tree_bytes": float(allocated),
            "with_block_events_bytes": asked / distinct,
        }
        return Reading({FIGURE: allocated / distinct}, details)

    def _grow(self) -> tuple[PrefixTree, int]:
        """Return a full tree, and the number of calls that built it."""
        router = Decisions(
            FIGURE, self._workers, worker_tokens=self._worker_tokens, seed=self._seed
        )
        return router.locality.tree, router.calls_made

    def _tokens(self, tree: PrefixTree, calls: int) -> tuple[int, int]:
        """Return distinct and held tokens, by generating the same calls again."""
        source, locality = BenchCallSource(self._seed), Locality(self._seed)
        seen: set[int] = set()
        for _ in range(calls):
            call = source.call()
            locality.register(call)
            seen.update(locality.keys(call.call_id))
            locality.forget(call.call_id)
        holders = [tree.holders(key).bit_count() for key in seen]
        distinct = sum(1 for count in holders if count)
        assert distinct == len(tree), "the calls were not the same"
        return distinct * locality.block_tokens, sum(holders) * locality.block_tokens
