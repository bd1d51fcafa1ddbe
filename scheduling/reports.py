"""What workers tell of their caches, and what is believed beside it (decision 9).

Of a worker that tells nothing the tree holds what was sent there, least recently used first out. Of one
that tells everything it holds what the worker says, and the prompts of the calls that are there: those
it has or will have. Their paths are locked in the tree: a worker evicts nothing of a call that runs, so
an eviction of such a block is one of before. When a call has left, and its news have had time to come,
what the worker never confirmed of its prompt goes. Nothing goes for want of room: the worker knows
better.

Of one that tells only a part (news were lost for good) everything told is applied, and what is not
contradicted stays believed, within the capacity.

Cost: O(nodes on the path) per call to lock and to unlock; one look-up when it has left, one a block if
it was not computed. Memory: about 70 bytes a block that a worker told of.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairserve.scheduling.block_keys import BlockKeys
from fairserve.scheduling.events import CacheReport, WorkerCached, WorkerEvicted
from fairserve.scheduling.prefix_node import Node
from fairserve.scheduling.prefix_tree import PrefixTree

LATE_S = 2.0
"""News that a prompt was computed come so much later than the end of its call at most."""
ROOM = 2
"""Times its capacity a worker that tells everything may have in the tree: what it has, and will have."""


@dataclass(slots=True)
class _Cache:
    """One worker. ``complete`` is None while it tells nothing."""

    capacity_blocks: int
    complete: bool | None = None
    held: set[int] = field(default_factory=set)
    """The blocks that it says it has."""
    there: dict[str, BlockKeys] = field(default_factory=dict)
    """Prompts of the calls at it, by call."""
    locks: dict[str, Node] = field(default_factory=dict)
    """Of these calls, if it tells anything."""
    left: deque[tuple[float, BlockKeys]] = field(default_factory=deque)
    """When calls left it, and their prompts, until ``LATE_S`` later; of one that tells all."""


class Reports:
    """Brings the tree in line with what workers tell. Part of :class:`Locality`."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._caches: dict[str, _Cache] = {}

    def add_worker(self, worker_id: str, capacity_blocks: int) -> None:
        """A worker joined; it tells nothing yet."""
        self._caches[worker_id] = _Cache(capacity_blocks)

    def remove_worker(self, worker_id: str) -> None:
        """A worker is gone; what it tells from now on is ignored."""
        self._caches.pop(worker_id, None)

    def complete(self, worker_id: str) -> bool | None:
        """Whether a worker tells all that it holds; None: nothing."""
        cache = self._caches.get(worker_id)
        return None if cache is None else cache.complete

    # --- calls ------------------------------------------------------------------------------------

    def placed(self, call_id: str, worker_id: str, keys: BlockKeys) -> None:
        """A call goes to a worker; its prompt is in the tree already."""
        cache = self._caches.get(worker_id)
        if cache is not None:
            cache.there[call_id] = keys
            if cache.complete is not None:
                cache.locks[call_id] = self._tree.lock(keys, worker_id, exact=True)

    def left(self, call_id: str, worker_id: str, now_s: float) -> None:
        """A call left its worker, whatever became of it."""
        cache = self._caches.get(worker_id)
        if cache is None:
            return
        keys = cache.there.pop(call_id, ())
        node = cache.locks.pop(call_id, None)
        if node is not None:
            self._tree.unlock(node, worker_id)
        if cache.complete:
            cache.left.append((now_s, keys))

    def settle(self, now_s: float) -> None:
        """The news of calls that left long ago have come: what was not confirmed goes."""
        for worker_id, cache in self._caches.items():
            while cache.left and now_s - cache.left[0][0] >= LATE_S:
                _, keys = cache.left.popleft()
                if keys and keys[-1] not in cache.held:  # workers have no block without its prefix
                    gone = [key for key in keys if key not in cache.held]
                    self._tree.evict(gone, worker_id)

    # --- what workers tell ------------------------------------------------------------------------

    def take(self, event: CacheReport) -> None:
        """A worker tells of its cache; one that is not here is ignored."""
        worker_id = event.worker_id
        cache = self._caches.get(worker_id)
        if cache is None:
            return
        if isinstance(event, WorkerCached):
            cache.held.update(event.keys)
            if event.parent is None:
                self._tree.insert(array("Q", event.keys), worker_id)
            else:
                self._tree.insert_below(event.parent, event.keys, worker_id)
        elif isinstance(event, WorkerEvicted):
            cache.held.difference_update(event.keys)
            self._tree.evict(event.keys, worker_id)
        else:
            self._reset(worker_id, cache, complete=event.complete)

    def _reset(self, worker_id: str, cache: _Cache, *, complete: bool) -> None:
        tree = self._tree
        for node in cache.locks.values():
            tree.unlock(node, worker_id)
        cache.complete = complete
        cache.held.clear()
        if complete:
            tree.clear_worker(worker_id)
            tree.resize(worker_id, ROOM * cache.capacity_blocks)
            for _, keys in cache.left:
                tree.insert(keys, worker_id)
        else:
            cache.left.clear()
        cache.locks = {
            call_id: self._expect(worker_id, keys) for call_id, keys in cache.there.items()
        }
        if not complete:
            tree.resize(worker_id, cache.capacity_blocks)

    def _expect(self, worker_id: str, keys: BlockKeys) -> Node:
        self._tree.insert(keys, worker_id)
        return self._tree.lock(keys, worker_id, exact=True)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """State as plain JSON values; ages, not times. The tree is not in it."""
        return {
            worker_id: {
                "capacity_blocks": cache.capacity_blocks,
                "complete": cache.complete,
                "held": sorted(cache.held),
                "there": list(cache.there),
                "left": [[now_s - left_s, list(keys)] for left_s, keys in cache.left],
            }
            for worker_id, cache in self._caches.items()
        }

    def restore(
        self, state: dict[str, Any], keys_of: Callable[[str], BlockKeys], now_s: float
    ) -> None:
        """Replace the state by an earlier snapshot; the tree was restored before."""
        self._caches = {}
        for worker_id, plain in state.items():
            cache = _Cache(plain["capacity_blocks"], plain["complete"], set(plain["held"]))
            self._caches[worker_id] = cache
            for call_id in plain["there"]:
                self.placed(call_id, worker_id, keys_of(call_id))
            for age_s, plain_keys in plain["left"]:
                cache.left.append((now_s - age_s, array("Q", plain_keys)))
