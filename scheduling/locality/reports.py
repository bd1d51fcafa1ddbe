"""Applies the cache events of workers, and keeps a belief about unreported blocks (decision 9).

For a worker that publishes nothing, the tree holds the prompts sent there, with LRU eviction. For
one that publishes everything, it holds the reported blocks and the prompts of its calls, which it
has or will have. These paths are locked in the tree: a worker evicts nothing of a running call, so
an eviction of such a block happened earlier. Once a call has left and its events have had time to
arrive, the unconfirmed parts of its prompt are removed. Nothing is removed for lack of space: the
worker decides that.

For one that publishes only a part (events were lost permanently) all reported events are applied,
and other blocks stay believed, within the capacity.

Cost: O(nodes on the path) per call to lock and to unlock; one look-up when it has left, or one per
block if it was not computed. Memory: about 70 bytes per block that a worker reported.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.scheduling.events import CacheReport, WorkerCached, WorkerEvicted
from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.prefix_node import PrefixNode
from fairserve.scheduling.locality.prefix_tree import PrefixTree

LATE_S = 2.0
"""Maximum delay of a prompt's events after the end of its call, in seconds."""
ROOM = 2
"""Maximum size of a publishing worker's part of the tree, relative to its capacity."""


@dataclass(slots=True)
class _Cache:
    """State of one worker. ``complete`` is None while it publishes nothing."""

    capacity_blocks: int
    complete: bool | None = None
    held: set[int] = field(default_factory=set)
    """Blocks reported as held."""
    there: dict[str, BlockKeys] = field(default_factory=dict)
    """Prompts of the worker's calls, by call."""
    locks: dict[str, PrefixNode] = field(default_factory=dict)
    """Locked nodes by call, if the worker publishes anything."""
    left: deque[tuple[float, BlockKeys]] = field(default_factory=deque)
    """Departure time and prompt of calls that left within ``LATE_S``, if it publishes everything."""


class Reports:
    """Keeps the tree consistent with the cache events of workers. Part of :class:`Locality`."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._caches: dict[str, _Cache] = {}

    def add_worker(self, worker_id: str, capacity_blocks: int) -> None:
        """Add a worker that has published nothing yet."""
        self._caches[worker_id] = _Cache(capacity_blocks)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker; its later events are ignored."""
        self._caches.pop(worker_id, None)

    def complete(self, worker_id: str) -> bool | None:
        """Return whether a worker publishes all its blocks; None if it publishes nothing."""
        cache = self._caches.get(worker_id)
        return None if cache is None else cache.complete

    # --- calls ------------------------------------------------------------------------------------

    def placed(self, call_id: str, worker_id: str, keys: BlockKeys) -> None:
        """Record a call that goes to a worker; its prompt is already in the tree."""
        cache = self._caches.get(worker_id)
        if cache is not None:
            cache.there[call_id] = keys
            if cache.complete is not None:
                cache.locks[call_id] = self._tree.lock(keys, worker_id, exact=True)

    def left(self, call_id: str, worker_id: str, now_s: float) -> None:
        """Record a call that left its worker, with any outcome."""
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
        """Remove unconfirmed blocks of calls that left more than ``LATE_S`` ago."""
        for worker_id, cache in self._caches.items():
            while cache.left and now_s - cache.left[0][0] >= LATE_S:
                _, keys = cache.left.popleft()
                if keys and keys[-1] not in cache.held:  # workers have no block without its prefix
                    gone = [key for key in keys if key not in cache.held]
                    self._tree.evict(gone, worker_id)

    # --- events of the workers ---------------------------------------------------------------------

    def take(self, event: CacheReport) -> None:
        """Apply a cache event of a worker; events of unknown workers are ignored."""
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

    def _expect(self, worker_id: str, keys: BlockKeys) -> PrefixNode:
        self._tree.insert(keys, worker_id)
        return self._tree.lock(keys, worker_id, exact=True)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times. The tree is not included."""
        return {
            worker_id: {
                "capacity_blocks": cache.capacity_blocks,
                "complete": cache.complete,
                "held": sorted(cache.held),
                "there": list(cache.there),
                "left": [[age_of(left_s, now_s), list(keys)] for left_s, keys in cache.left],
            }
            for worker_id, cache in self._caches.items()
        }

    def restore(
        self, state: dict[str, Any], keys_of: Callable[[str], BlockKeys], now_s: float
    ) -> None:
        """Replace the state by an earlier snapshot; the tree must be restored before."""
        self._caches = {}
        for worker_id, plain in state.items():
            cache = _Cache(plain["capacity_blocks"], plain["complete"], set(plain["held"]))
            self._caches[worker_id] = cache
            for call_id in plain["there"]:
                self.placed(call_id, worker_id, keys_of(call_id))
            for age, plain_keys in plain["left"]:
                cache.left.append((time_of(age, now_s), array("Q", plain_keys)))
