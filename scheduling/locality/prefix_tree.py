"""Believed contents of prefix caches: segments of block keys, and the workers that hold them.

A segment is a node of a radix tree (:mod:`fairserve.scheduling.locality.segments`) with the mask of
the workers that hold all of it; a worker that holds a node holds its ancestors.

Each worker's part is bounded by its capacity. The least recently used leaf is evicted first, from
its end, block by block. A node that other workers hold, too, is evicted as a whole, so that
evictions do not fragment shared prefixes.

It represents the router's belief about all caches and, with one worker, a local prefix cache. Paths
of calls in progress are locked in the latter, and at workers that publish their cache. Cost:
O(nodes on the path + log blocks) for a match or an insertion. Memory: 8 bytes per block and about
500 per node; with events by block key about 80 more per block.

Weakness: the eviction of a block in the middle of a path drops the worker's blocks below it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.prefix_node import Cache, Link, PrefixNode
from fairserve.scheduling.locality.segments import Appeared, Disappeared, Renamed, Segments
from fairserve.scheduling.locality.workers import Workers

Held = Callable[[PrefixNode], None]
"""Listener that receives a node that other workers hold than before."""


class PrefixTree:
    """Map from prefixes, as block keys, to the workers that hold them."""

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = Workers() if workers is None else workers
        self._segments = Segments()
        self.find = self._segments.find
        self._caches: dict[int, Cache] = {}
        self._followers: list[Held] = []

    def follow(self, appeared: Appeared, disappeared: Disappeared, renamed: Renamed) -> None:
        """Subscribe, as with :meth:`fairserve.scheduling.locality.segments.Segments.follow`."""
        self._segments.follow(appeared, disappeared, renamed)

    def follow_holders(self, held: Held) -> None:
        """Subscribe to the nodes whose holders change. They may be renamed or removed afterwards."""
        self._followers.append(held)

    def __len__(self) -> int:
        """Return the number of distinct blocks that are cached anywhere."""
        return self._segments.blocks

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker_id: str, capacity_blocks: int) -> None:
        """Add a worker with an empty cache. Raises ValueError if it was added before."""
        slot = self.workers.slot(worker_id)
        if slot in self._caches:
            raise ValueError(f"worker {worker_id!r} is in the tree already")
        self._caches[slot] = Cache(slot, capacity_blocks, self._segments.root)

    def remove_worker(self, worker_id: str) -> None:
        """Forget everything about a worker; unknown workers are ignored."""
        cache = self._cache(worker_id)
        if cache is None:
            return
        self.clear_worker(worker_id)
        del self._caches[cache.slot]
        self.workers.forget(worker_id)

    def clear_worker(self, worker_id: str) -> None:
        """Empty a worker's cache; the worker keeps its number. Unknown workers are ignored."""
        cache = self._cache(worker_id)
        if cache is not None:
            for link in cache:  # children before their parents
                self._drop(link.node, cache)

    def mask(self, workers: Collection[str]) -> int:
        """Return the bit mask of some workers; unknown ones are ignored."""
        return self.workers.mask(workers)

    def locked_blocks(self, worker_id: str) -> int:
        """Return the number of blocks that a worker holds and must not evict; 0 if unknown."""
        cache = self._cache(worker_id)
        return 0 if cache is None else cache.locked

    def resize(self, worker_id: str, capacity_blocks: int) -> None:
        """Change a worker's capacity; unlocked blocks over it are evicted now."""
        cache = self._cache(worker_id)
        assert cache is not None, f"unknown worker {worker_id!r}"
        cache.capacity = capacity_blocks
        if cache.blocks > capacity_blocks:
            self._shrink(cache)

    def holds(self, worker_id: str, mask: int) -> bool:
        """Return whether the worker is in the mask."""
        return worker_id in self.workers and bool(mask >> self.workers.slot(worker_id) & 1)

    def _cache(self, worker_id: str) -> Cache | None:
        if worker_id not in self.workers:
            return None
        return self._caches.get(self.workers.slot(worker_id))

    # --- reading ----------------------------------------------------------------------------------

    def match(self, keys: BlockKeys, mask: int) -> tuple[int, int]:
        """Return the longest match in blocks at any worker of ``mask``, and the mask of its holders."""
        blocks, node = self._segments.find(keys)
        holders = node.mask & mask
        return (blocks, holders) if holders else self.match_at(node, blocks, mask)

    @staticmethod
    def match_at(node: PrefixNode, depth: int, mask: int) -> tuple[int, int]:
        """Return the match of a path that ended at block ``depth`` in this node, or now above it."""
        while depth:
            if node.start < depth:
                holders = node.mask & mask
                if holders:
                    return depth, holders
                depth = node.start
            assert node.parent is not None
            node = node.parent
        return 0, 0

    def holders(self, key: int) -> int:
        """Return the mask of the workers that have a block; 0 if none. Needs the map of all blocks."""
        found = self._segments.find_block(key)
        return 0 if found is None else found[0].mask

    # --- writing ----------------------------------------------------------------------------------

    def insert(self, keys: BlockKeys, worker_id: str) -> None:
        """Insert the blocks that the worker has, or will soon have, as its most recently used.

        May evict other blocks of the worker. Unknown workers are ignored.
        """
        cache = self._cache(worker_id)
        wanted = len(keys)
        if cache is None or not wanted:
            return
        segments = self._segments
        blocks, node = segments.find(keys)
        if blocks < node.start + len(node.keys):
            node = segments.split(node, blocks)  # the part beyond is not used now
        grown = blocks < wanted
        if grown:
            rest = keys[blocks:]
            node = segments.add(node, blocks, rest if isinstance(rest, array) else array("Q", rest))
        self._touch(node, cache)
        segments.merge_path(node)
        if grown:
            segments.notify_appeared(keys[blocks])
        if cache.blocks > cache.capacity:
            self._shrink(cache)

    def insert_below(self, parent: int, keys: Sequence[int], worker_id: str) -> None:
        """Insert these blocks after the block ``parent`` if the worker has that block."""
        cache = self._cache(worker_id)
        found = self._segments.find_block(parent)
        if cache is None or found is None or not found[0].mask & cache.bit:
            return
        node, place = found
        parts = [node.keys[: place + 1]]
        while (node := node.parent or node).parent is not None:
            parts.append(node.keys)
        path = array("Q")
        for part in reversed(parts):
            path += part
        path.extend(keys)
        self.insert(path, worker_id)

    def _touch(self, node: PrefixNode, cache: Cache) -> None:
        """Mark this node and its ancestors as held and just used by the worker, deepest first."""
        slot, bit, edge = cache.slot, cache.bit, cache.edge
        while node.parent is not None:
            link = node.links.get(slot)
            if link is None:
                link = node.links[slot] = Link(node)
                node.mask |= bit
                cache.blocks += len(node.keys)
                for held in self._followers:
                    held(node)
            else:
                link.older.newer = link.newer
                link.newer.older = link.older
            newest = edge.older
            link.older, link.newer = newest, edge
            newest.newer = edge.older = link
            node = node.parent

    def _shrink(self, cache: Cache) -> None:
        """Evict the worker's least recently used unlocked blocks down to its capacity."""
        edge = cache.edge
        link, excess = edge.newer, cache.blocks - cache.capacity
        while excess > 0 and link is not edge:
            node, newer = link.node, link.newer
            if not link.locks:
                if node.mask == cache.bit and excess < len(node.keys):
                    self._truncate(node, len(node.keys) - excess, cache)
                else:
                    self._drop(node, cache)
                excess = cache.blocks - cache.capacity
            link = newer

    def evict(self, keys: BlockKeys, worker_id: str) -> None:
        """Remove blocks that the worker evicted, in any order; unknown ones are ignored.

        The worker's blocks below them are removed, too: a block cannot be used without its prefix.
        Locked blocks stay.
        """
        cache = self._cache(worker_id)
        if cache is None:
            return
        cuts: dict[PrefixNode, int] = {}
        for key in keys:
            found = self._segments.find_block(key)
            if found is not None and found[0].mask & cache.bit:
                node, cut = found
                cuts[node] = min(cut, cuts.get(node, cut))
        for node, cut in cuts.items():
            link = node.links.get(cache.slot)
            if link is None or link.locks:
                continue  # it was removed with an ancestor, or stays
            self._drop_below(node, cache)
            if cut == 0:
                self._drop(node, cache)
            elif node.mask == cache.bit:
                self._truncate(node, cut, cache)
            else:
                self._segments.split(node, node.start + cut)
                self._drop(node, cache)

    def _drop_below(self, node: PrefixNode, cache: Cache) -> None:
        below = [node]
        for each in below:  # grows during the walk: parents before their children
            below += [child for child in each.children or () if child.mask & cache.bit]
        for each in reversed(below[1:]):
            self._drop(each, cache)

    def _drop(self, node: PrefixNode, cache: Cache) -> None:
        """Remove the node from a worker that holds nothing below it."""
        link = node.links.pop(cache.slot)
        link.unlink()
        cache.blocks -= len(node.keys)
        if link.locks:
            cache.locked -= len(node.keys)
        node.mask &= ~cache.bit
        if not node.mask:
            self._segments.remove(node)
        else:
            for held in self._followers:
                held(node)

    def _truncate(self, node: PrefixNode, kept: int, cache: Cache) -> None:
        """Truncate a leaf that only this worker holds."""
        cut = len(node.keys) - kept
        cache.blocks -= cut
        if node.links[cache.slot].locks:
            cache.locked -= cut
        self._segments.truncate(node, kept)

    # --- locks ------------------------------------------------------------------------------------

    def lock(self, keys: BlockKeys, worker_id: str, *, exact: bool = False) -> PrefixNode:
        """Keep the worker's blocks of this path until :meth:`unlock` of the returned node.

        With ``exact`` nothing beyond the path is kept: its last node is split there.
        """
        cache = self._cache(worker_id)
        assert cache is not None, f"unknown worker {worker_id!r}"
        blocks, node = self._segments.find(keys)
        if exact and node.start < blocks < node.end:
            node = self._segments.split(node, blocks)
        while node.parent is not None and not node.mask & cache.bit:
            node = node.parent
        self._count_locks(node, cache, 1)
        return node

    def unlock(self, node: PrefixNode, worker_id: str) -> None:
        """Undo one :meth:`lock`; over-full caches shrink at their next insertion."""
        cache = self._cache(worker_id)
        if cache is not None:
            self._count_locks(node, cache, -1)

    @staticmethod
    def _count_locks(node: PrefixNode, cache: Cache, by: int) -> None:
        while node.parent is not None:
            link = node.links.get(cache.slot)
            if link is not None and link.locks + by >= 0:  # otherwise it was dropped nevertheless
                link.locks += by
                if not link.locks:
                    cache.locked -= len(node.keys)
                elif by > 0 and link.locks == by:
                    cache.locked += len(node.keys)
            node = node.parent

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values: nodes, parents first, and each worker's recency order.

        Locks are not included: they belong to running calls.
        """
        numbers: dict[PrefixNode, int] = {self._segments.root: -1}
        nodes: list[list[Any]] = []
        stack = [self._segments.root]
        while stack:
            parent = stack.pop()
            for node in parent.children or ():
                numbers[node] = len(nodes)
                nodes.append([numbers[parent], node.keys.tolist()])
                stack.append(node)
        held = {
            self.workers.name(slot): {
                "capacity": cache.capacity,
                "nodes": [numbers[link.node] for link in cache],
            }
            for slot, cache in self._caches.items()
        }
        return {"workers": self.workers.snapshot(), "nodes": nodes, "held": held}

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot. Listeners must clear their own state."""
        self.workers.restore(state["workers"])
        segments = self._segments
        segments.clear()
        self._caches = {}
        nodes: list[PrefixNode] = []
        for parent, keys in state["nodes"]:
            above = segments.root if parent < 0 else nodes[parent]
            nodes.append(segments.add(above, above.end, array("Q", keys)))
        for worker_id, plain in state["held"].items():
            slot = self.workers.slot(worker_id)
            cache = self._caches[slot] = Cache(slot, plain["capacity"], segments.root)
            for number in plain["nodes"]:
                node = nodes[number]
                link = node.links[slot] = Link(node)
                link.insert_before(cache.edge)
                node.mask |= cache.bit
                cache.blocks += len(node.keys)
