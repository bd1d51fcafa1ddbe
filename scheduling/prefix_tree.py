"""Who has which prefix cached: a radix tree of segments of block keys, shared by all workers.

A node is a run of blocks without a branch, and the mask of the workers that hold all of it; a worker
that holds a node holds its ancestors. Keys are chained (:mod:`fairserve.scheduling.block_keys`), so one
map from key to node replaces the walk from the root: the longest match is a binary search over the
prompt's blocks, and an eviction told by block key finds its node at once.

Each worker's part is bounded by its capacity. The least recently used leaf goes first, from its end,
block by block; a node that other workers hold, too, goes as a whole, so that evictions do not cut shared
prefixes to pieces. Every node has a link in the recency list of each of its holders; a list is in
order of use with parents after their children, so its oldest unlocked entry is a leaf of that worker.

Used for the router's belief of all caches, and with one worker as a local prefix cache, where the paths
of running calls are locked. Cost: O(log blocks) for a match; for an insertion that, O(nodes on the
path), and O(new blocks) in the map. Memory: one map entry and 8 bytes a block, and the nodes.

Weakness: news that a block in the middle of a path is gone drops what the worker has below it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Any

from fairserve.scheduling.block_keys import BlockKeys
from fairserve.scheduling.workers import Workers

Appeared = Callable[[int], None]
"""Is given the first key of a run of blocks that now have their first holder."""

Disappeared = Callable[[BlockKeys], None]
"""Is given blocks of one node that have lost their last holder."""


class _Link:
    """A node in the recency list of one of its holders."""

    __slots__ = ("locks", "newer", "node", "older")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.locks = 0
        """Running calls of this worker whose path goes through the node."""
        self.older: _Link = self
        self.newer: _Link = self

    def unlink(self) -> None:
        """Take it out of its list."""
        self.older.newer = self.newer
        self.newer.older = self.older

    def insert_before(self, newer: _Link) -> None:
        """Put it into the list of ``newer``, as the next older one."""
        older = newer.older
        self.older, self.newer = older, newer
        older.newer = newer.older = self


class Node:
    """A run of blocks. To be read only; ``locks`` of a path are taken by the tree."""

    __slots__ = ("children", "keys", "links", "mask", "parent", "start")

    def __init__(self, parent: Node | None, start: int, keys: array[int]) -> None:
        self.parent = parent
        """None for the root, which has no keys."""
        self.start = start
        """Blocks before this node on its path."""
        self.keys = keys
        self.mask = 0
        """Workers that hold all of its blocks."""
        self.links: dict[int, _Link] = {}
        self.children: dict[Node, None] | None = None

    @property
    def end(self) -> int:
        """Blocks of the path, this node included."""
        return self.start + len(self.keys)


class _Cache:
    """What one worker holds. The list's newest end is ``edge.older``, its oldest ``edge.newer``."""

    __slots__ = ("bit", "blocks", "capacity", "edge", "slot")

    def __init__(self, slot: int, capacity_blocks: int, root: Node) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.capacity = max(1, capacity_blocks)
        self.blocks = 0
        self.edge = _Link(root)

    def __iter__(self) -> Iterator[_Link]:
        """Links from the least to the most recently used; the present one may be unlinked."""
        link = self.edge.newer
        while link is not self.edge:
            following = link.newer
            yield link
            link = following


class PrefixTree:
    """Block keys -> workers."""

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = Workers() if workers is None else workers
        self._root = Node(None, 0, array("Q"))
        self._index: dict[int, Node] = {}
        self._caches: dict[int, _Cache] = {}
        self._appeared: list[Appeared] = []
        self._disappeared: list[Disappeared] = []

    def follow(self, appeared: Appeared, disappeared: Disappeared) -> None:
        """Tell of blocks that get their first holder, and of those that lose their last one.

        Who watches for the block after a match is told at its key, which is the first of the run.
        """
        self._appeared.append(appeared)
        self._disappeared.append(disappeared)

    def __len__(self) -> int:
        """Distinct blocks that are cached somewhere."""
        return len(self._index)

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker_id: str, capacity_blocks: int) -> None:
        """A worker joins with an empty cache. Raises ValueError if it is there already."""
        slot = self.workers.slot(worker_id)
        if slot in self._caches:
            raise ValueError(f"worker {worker_id!r} is in the tree already")
        self._caches[slot] = _Cache(slot, capacity_blocks, self._root)

    def remove_worker(self, worker_id: str) -> None:
        """Forget everything about a worker; unknown workers are ignored."""
        cache = self._cache(worker_id)
        if cache is None:
            return
        for link in cache:  # children before their parents
            self._drop(link.node, cache)
        del self._caches[cache.slot]
        self.workers.forget(worker_id)

    def mask(self, workers: Collection[str]) -> int:
        """The bit mask of some workers; unknown ones are left out."""
        return self.workers.mask(workers)

    def blocks_of(self, worker_id: str) -> int:
        """Blocks that a worker holds; 0 for an unknown one."""
        cache = self._cache(worker_id)
        return 0 if cache is None else cache.blocks

    def holds(self, worker_id: str, mask: int) -> bool:
        """Whether the worker is in the mask."""
        return worker_id in self.workers and bool(mask >> self.workers.slot(worker_id) & 1)

    def _cache(self, worker_id: str) -> _Cache | None:
        if worker_id not in self.workers:
            return None
        return self._caches.get(self.workers.slot(worker_id))

    # --- reading ----------------------------------------------------------------------------------

    def _find(self, keys: BlockKeys) -> tuple[int, Node]:
        """How many blocks are cached anywhere, and the node of the last of them."""
        get = self._index.get
        low, high, node = 0, len(keys), self._root
        while low < high:  # keys[:low] are cached, keys[:high + 1] are not
            middle = (low + high) >> 1
            found = get(keys[middle])
            if found is None:
                high = middle
            else:
                low, node = middle + 1, found
        return low, node

    def match(self, keys: BlockKeys, mask: int) -> tuple[int, int]:
        """Blocks of the longest match at any worker of ``mask``, and the mask of those with it."""
        blocks, node = self._find(keys)
        return self._up(blocks, node, mask)

    def match_at(self, key: int, depth: int, mask: int) -> tuple[int, int]:
        """The same for a path that is known to end at block ``depth`` with this cached key."""
        return self._up(depth, self._index[key], mask)

    def _up(self, blocks: int, node: Node, mask: int) -> tuple[int, int]:
        while blocks:
            holders = node.mask & mask
            if holders:
                return blocks, holders
            blocks = node.start
            assert node.parent is not None
            node = node.parent
        return 0, 0

    def holders(self, key: int) -> int:
        """The mask of the workers that have a block; 0 if none has."""
        node = self._index.get(key)
        return 0 if node is None else node.mask

    # --- writing ----------------------------------------------------------------------------------

    def insert(self, keys: BlockKeys, worker_id: str) -> None:
        """The worker has, or will soon have, these blocks: they are its most recently used.

        May evict others of its blocks. Unknown workers are ignored.
        """
        cache = self._cache(worker_id)
        if cache is None or not len(keys):
            return
        blocks, node = self._find(keys)
        if blocks < node.end and not (blocks == len(keys) and node.mask & cache.bit):
            node = self._split(node, blocks)
        grown = None
        if blocks < len(keys):
            grown = node = self._add_child(node, array("Q", keys[blocks:]))
        self._touch(node, cache)
        if grown is not None:
            for appeared in self._appeared:
                appeared(grown.keys[0])
        if cache.blocks > cache.capacity:
            self._shrink(cache)

    def _add_child(self, parent: Node, keys: array[int]) -> Node:
        node = Node(parent, parent.end, keys)
        if parent.children is None:
            parent.children = {}
        parent.children[node] = None
        self._index.update(dict.fromkeys(keys, node))
        return node

    def _touch(self, node: Node, cache: _Cache) -> None:
        """The worker holds this node and its ancestors, used now: the deepest first."""
        slot, bit, edge = cache.slot, cache.bit, cache.edge
        while node.parent is not None:
            link = node.links.get(slot)
            if link is None:
                link = node.links[slot] = _Link(node)
                node.mask |= bit
                cache.blocks += len(node.keys)
            else:
                link.older.newer = link.newer
                link.newer.older = link.older
            newest = edge.older
            link.older, link.newer = newest, edge
            newest.newer = edge.older = link
            node = node.parent

    def _split(self, lower: Node, depth: int) -> Node:
        """Cut a node at a depth inside it; returns the new upper part, the lower keeps its identity."""
        parent = lower.parent
        assert parent is not None
        assert parent.children is not None
        cut = depth - lower.start
        upper = Node(parent, lower.start, lower.keys[:cut])
        upper.mask = lower.mask
        upper.children = {lower: None}
        for slot, link in lower.links.items():
            twin = upper.links[slot] = _Link(upper)
            twin.locks = link.locks
            twin.insert_before(link.newer)
        del parent.children[lower]
        parent.children[upper] = None
        lower.parent, lower.start, lower.keys = upper, depth, lower.keys[cut:]
        self._index.update(dict.fromkeys(upper.keys, upper))
        return upper

    def _shrink(self, cache: _Cache) -> None:
        """Evict the worker's least recently used blocks down to its capacity, as far as unlocked."""
        for link in cache:
            excess = cache.blocks - cache.capacity
            if excess <= 0:
                return
            node = link.node
            if link.locks:
                continue
            if node.mask == cache.bit and excess < len(node.keys):
                self._truncate(node, len(node.keys) - excess, cache)
            else:
                self._drop(node, cache)

    def evict(self, keys: BlockKeys, worker_id: str) -> None:
        """The worker says that it dropped these blocks, in any order; unknown ones are ignored.

        What it held below them goes, too: without its prefix a block cannot be used.
        """
        cache = self._cache(worker_id)
        if cache is None:
            return
        cuts: dict[Node, int] = {}
        for key in keys:
            node = self._index.get(key)
            if node is not None and node.mask & cache.bit:
                cut = node.keys.index(key)
                cuts[node] = min(cut, cuts.get(node, cut))
        for node, cut in cuts.items():
            if not node.mask & cache.bit:
                continue  # it went with one of its ancestors
            self._drop_below(node, cache)
            if cut == 0:
                self._drop(node, cache)
            elif node.mask == cache.bit:
                self._truncate(node, cut, cache)
            else:
                self._split(node, node.start + cut)
                self._drop(node, cache)

    def _drop_below(self, node: Node, cache: _Cache) -> None:
        below = [node]
        for each in below:  # grows while it is walked: parents before their children
            below += [child for child in each.children or () if child.mask & cache.bit]
        for each in reversed(below[1:]):
            self._drop(each, cache)

    def _drop(self, node: Node, cache: _Cache) -> None:
        """The worker holds nothing below this node, and now not the node either."""
        node.links.pop(cache.slot).unlink()
        cache.blocks -= len(node.keys)
        node.mask &= ~cache.bit
        if not node.mask:
            parent = node.parent
            assert parent is not None
            assert parent.children is not None
            del parent.children[node]
            if not parent.children:
                parent.children = None
            self._forget(node.keys)

    def _truncate(self, node: Node, kept: int, cache: _Cache) -> None:
        """Cut the end off a leaf that only this worker holds."""
        gone = node.keys[kept:]
        node.keys = node.keys[:kept]
        cache.blocks -= len(gone)
        self._forget(gone)

    def _forget(self, keys: array[int]) -> None:
        index = self._index
        for key in keys:
            del index[key]
        for disappeared in self._disappeared:
            disappeared(keys)

    # --- locks ------------------------------------------------------------------------------------

    def lock(self, keys: BlockKeys, worker_id: str) -> Node:
        """Keep what the worker holds of this path until :meth:`unlock` of the node returned."""
        cache = self._cache(worker_id)
        assert cache is not None, f"unknown worker {worker_id!r}"
        _, node = self._find(keys)
        while node.parent is not None and not node.mask & cache.bit:
            node = node.parent
        self._count_locks(node, cache, 1)
        return node

    def unlock(self, node: Node, worker_id: str) -> None:
        """Undo one :meth:`lock`; over-full caches shrink at their next insertion."""
        cache = self._cache(worker_id)
        if cache is not None:
            self._count_locks(node, cache, -1)

    @staticmethod
    def _count_locks(node: Node, cache: _Cache, by: int) -> None:
        while node.parent is not None:
            link = node.links.get(cache.slot)
            if link is not None:  # else the worker told that it dropped the node all the same
                link.locks = max(0, link.locks + by)
            node = node.parent

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values: nodes with parents first, and each worker's recency order.

        Locks are not in it: they belong to running calls.
        """
        numbers: dict[Node, int] = {self._root: -1}
        nodes: list[list[Any]] = []
        stack = [self._root]
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
        """Replace the state by an earlier snapshot. Who follows must clear what it knows."""
        self.workers.restore(state["workers"])
        self._root = Node(None, 0, array("Q"))
        self._index, self._caches = {}, {}
        nodes: list[Node] = []
        for parent, keys in state["nodes"]:
            above = self._root if parent < 0 else nodes[parent]
            nodes.append(self._add_child(above, array("Q", keys)))
        for worker_id, plain in state["held"].items():
            slot = self.workers.slot(worker_id)
            cache = self._caches[slot] = _Cache(slot, plain["capacity"], self._root)
            for number in plain["nodes"]:
                node = nodes[number]
                link = node.links[slot] = _Link(node)
                link.insert_before(cache.edge)
                node.mask |= cache.bit
                cache.blocks += len(node.keys)
