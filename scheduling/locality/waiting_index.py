"""Index of the queued calls by their cached blocks: finds those of which most is cached at some workers.

Matching every queued call in the prefix tree at every selection would cost O(queue * log blocks).
Instead, calls with the same deepest cached block form a group. The depth of a group never changes;
a call changes its group only when the block after its deepest one appears in the tree (the call
watches that key) or its deepest block disappears.

The reader's *rank* says how much is cached: the blocks, or the share of the prompt in sixteenths. Calls
of a group whose ranks differ are different groups.

Groups are filed in *buckets* by rank and by the workers that hold their block. A bucket keeps its
calls in an order of its reader, so a selection reads one call per bucket. A large group has a bucket
of its own, so that none of its thousands of calls moves when another worker stores their block; small
groups share one, so that thousands of sessions of the same length are one bucket.

At workers that do not hold a group's block, its calls may still match a shorter prefix. That prefix
is the same for all of them, since they share everything up to the block: one walk up the tree per
group. Their rank is proportional there, rounded down.

Cost: one match to add a call, O(log calls) to remove it, one match per call that changes its group,
O(``LARGE``) when the workers change that hold a block. A selection visits the buckets from the greatest
rank down and stops when none can be greater: O(different ranks and sets of holders), plus at most
``MOST_WALKS`` calls of groups that no open worker holds. Which ones does not depend on the order of
events: a copy from a snapshot visits the same.

Weakness: with more such calls, a shorter match of one of them at an open worker may be missed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from fairserve.interactions.call import UNRESTRICTED, Restriction
from fairserve.scheduling.locality.block_keys import BlockKeys
from fairserve.scheduling.locality.prefix_node import PrefixNode
from fairserve.scheduling.locality.prefix_tree import PrefixTree

Client = Any
"""Client as represented by the feeder; hashable."""

Rank = Callable[[int, int], int]
"""Returns how much of a prompt is cached, by its cached and all its blocks; 0 is as good as nothing."""

LARGE = 32
"""Number of calls from which a group has a bucket of its own."""
SMALL = 8
"""Number of calls below which it shares one again."""
MOST_WALKS = 256
"""Most calls of groups without an open holder that a selection visits; a large group counts as one."""


class Ordered(Protocol):
    """Calls of a bucket in the order of the reader."""

    def __len__(self) -> int: ...

    def add(self, client: Client, arrival: int, call_id: str) -> None:
        """Add a call."""
        ...

    def discard(self, client: Client, arrival: int, call_id: str) -> None:
        """Remove a call."""
        ...


C = TypeVar("C", bound=Ordered)


class _Bucket(Generic[C]):
    """Calls with the same rank, the same holders of their deepest cached block, and one restriction."""

    __slots__ = ("calls", "groups", "mask", "restriction")

    def __init__(self, mask: int, restriction: Restriction, calls: C) -> None:
        self.mask = mask
        self.restriction = restriction
        self.calls = calls
        self.groups: list[tuple[int, Group[C]]] = []
        """Groups with their keys, which are different, in the order of these."""

    @property
    def order(self) -> tuple[Any, ...]:
        """Return the place among the buckets of the same rank, none of which has the same."""
        kinds, workers, avoid, *sizes = self.restriction
        return self.groups[0][0], sorted(kinds), sorted(workers), sorted(avoid), *sizes


class Group(Generic[C]):
    """Calls with the same deepest cached block, rank and restriction."""

    __slots__ = ("bucket", "calls", "depth", "key", "large", "node", "rank", "restriction")

    def __init__(
        self, key: int, rank: int, depth: int, node: PrefixNode, restriction: Restriction
    ) -> None:
        self.key = key
        """Key of the deepest cached block."""
        self.rank = rank
        self.depth = depth
        """Number of blocks that all members share and that are cached anywhere."""
        self.node = node
        """Node of that block."""
        self.restriction = restriction
        self.calls: dict[str, tuple[Client, int]] = {}
        """Client and arrival number of each call."""
        self.large = False
        self.bucket: _Bucket[C] | None = None

    @property
    def order(self) -> C | None:
        """Return the order of the calls of a large group; None for a small one."""
        return self.bucket.calls if self.large and self.bucket is not None else None


class _Waiting(NamedTuple):
    keys: BlockKeys
    depth: int
    """Number of leading keys that are cached anywhere."""
    client: Client
    arrival: int
    restriction: Restriction


class WaitingIndex(Generic[C]):
    """Index over one tree. Every queued call is in one group, or matches nothing."""

    def __init__(self, tree: PrefixTree, order: Callable[[], C], rank: Rank) -> None:
        """``order`` returns an empty order for the calls of a bucket."""
        self._tree, self._order, self._rank = tree, order, rank
        tree.follow(self._appeared, self._disappeared, self._renamed)
        tree.follow_holders(self._held)
        self._calls: dict[str, _Waiting] = {}
        self._groups: dict[tuple[int, int, Restriction], Group[C]] = {}
        """Groups by the key of the deepest cached block, rank and restriction."""
        self._at: dict[PrefixNode, dict[Group[C], None]] = {}
        """Groups by their node."""
        self._buckets: dict[int, dict[_Bucket[C], None]] = {}
        """Buckets by rank."""
        self._shared: dict[tuple[int, int, Restriction], _Bucket[C]] = {}
        """Buckets of small groups by rank, holders and restriction."""
        self._ranks: list[int] = []
        """Ranks of all buckets, ascending."""
        self._moved: dict[PrefixNode, None] = {}
        """Nodes with groups whose holders changed since the last selection."""
        self._watchers: dict[int, dict[str, None]] = {}
        """Calls by the key of the block that would extend their match."""

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._calls)

    def add(
        self,
        call_id: str,
        keys: BlockKeys,
        client: Client,
        arrival: int,
        restriction: Restriction = UNRESTRICTED,
    ) -> None:
        """Add a queued call. Raises ValueError if it was added before."""
        if call_id in self._calls:
            raise ValueError(f"call {call_id!r} is indexed already")
        depth, node = self._tree.find(keys)
        self._calls[call_id] = _Waiting(keys, depth, client, arrival, restriction)
        if depth:
            self._enter(call_id, node)
        if depth < len(keys):
            watchers = self._watchers.get(keys[depth])
            if watchers is None:
                self._watchers[keys[depth]] = {call_id: None}
            else:
                watchers[call_id] = None

    def remove(self, call_id: str) -> None:
        """Remove a call; unknown ids are ignored."""
        waiting = self._calls.pop(call_id, None)
        if waiting is None:
            return
        keys, depth = waiting.keys, waiting.depth
        if depth:
            self._leave(call_id, self._groups[self._place(waiting)])
        if depth < len(keys):
            following = keys[depth]
            watchers = self._watchers[following]
            if len(watchers) > 1:
                del watchers[call_id]
            else:
                del self._watchers[following]

    def clear(self) -> None:
        """Remove all calls, when the tree was restored from a snapshot."""
        self._calls, self._groups, self._at, self._buckets = {}, {}, {}, {}
        self._shared, self._ranks, self._moved, self._watchers = {}, [], {}, {}

    def large(self) -> list[str]:
        """Return a call of each large group that would be small if its calls were added again."""
        groups = (each for each in self._groups.values() if each.large and len(each.calls) < LARGE)
        return sorted(min(each.calls) for each in groups)

    def enlarge(self, call_ids: Iterable[str]) -> None:
        """Make the groups of these calls large, as in the index that returned them."""
        for call_id in call_ids:
            self._refile(self._groups[self._place(self._calls[call_id])], large=True)

    # --- selection --------------------------------------------------------------------------------

    def at_holders(
        self, mask: int, excluded: Collection[Restriction] = frozenset()
    ) -> Iterator[tuple[int, C]]:
        """Yield ``(rank, calls)`` of the buckets with a holder in ``mask``, the greatest rank first.

        Calls with an ``excluded`` restriction are skipped.
        """
        self._file_moved()
        for rank in reversed(self._ranks):
            if not rank:
                return
            for bucket in self._buckets[rank]:
                if bucket.mask & mask and bucket.restriction not in excluded:
                    yield rank, bucket.calls

    def elsewhere(
        self, mask: int, beyond: int, excluded: Collection[Restriction] = frozenset()
    ) -> Iterator[tuple[int, Group[C]]]:
        """Yield ``(rank, group)`` of the groups ranked over ``beyond``, without a holder in ``mask``.

        Their calls match a shorter prefix there. Yields the groups with the greatest ranks first, up to
        ``MOST_WALKS`` calls, and none whose rank there is below ``beyond``, or 0.
        """
        self._file_moved()
        walks, match_at = 0, self._tree.match_at
        for rank in reversed(self._ranks):
            if rank <= beyond:
                return
            buckets = [
                bucket
                for bucket in self._buckets[rank]
                if not (bucket.mask & mask or bucket.restriction in excluded)
            ]
            if len(buckets) > 1:
                buckets.sort(key=attrgetter("order"))
            for bucket in buckets:
                for _, group in bucket.groups:
                    walks += 1 if group.large else len(group.calls)
                    if walks > MOST_WALKS:
                        return
                    match, _ = match_at(group.node, group.depth, mask)
                    there = rank * match // group.depth
                    if there and there >= beyond:
                        yield there, group

    # --- groups and buckets -----------------------------------------------------------------------

    def _place(self, waiting: _Waiting) -> tuple[int, int, Restriction]:
        """Return the key of a call's deepest cached block, its rank and its restriction."""
        rank = self._rank(waiting.depth, len(waiting.keys))
        return waiting.keys[waiting.depth - 1], rank, waiting.restriction

    def _enter(self, call_id: str, node: PrefixNode) -> None:
        waiting = self._calls[call_id]
        client, arrival = waiting.client, waiting.arrival
        place = key, rank, restriction = self._place(waiting)
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = Group(key, rank, waiting.depth, node, restriction)
            self._at.setdefault(node, {})[group] = None
            self._file(group)
        group.calls[call_id] = client, arrival
        assert group.bucket is not None
        group.bucket.calls.add(client, arrival, call_id)
        if len(group.calls) >= LARGE and not group.large:
            self._refile(group, large=True)

    def _leave(self, call_id: str, group: Group[C]) -> None:
        client, arrival = group.calls.pop(call_id)
        assert group.bucket is not None
        group.bucket.calls.discard(client, arrival, call_id)
        if not group.calls:
            del self._groups[group.key, group.rank, group.restriction]
            self._unfile(group)
            self._leave_node(group)
        elif group.large and len(group.calls) < SMALL:
            self._refile(group, large=False)

    def _file(self, group: Group[C]) -> None:
        """Choose the bucket of a group, which its calls must enter."""
        mask, restriction = group.node.mask, group.restriction
        bucket = None if group.large else self._shared.get((group.rank, mask, restriction))
        if bucket is None:
            bucket = _Bucket(mask, restriction, self._order())
            if not group.large:
                self._shared[group.rank, mask, restriction] = bucket
            with_rank = self._buckets.get(group.rank)
            if with_rank is None:
                with_rank = self._buckets[group.rank] = {}
                insort(self._ranks, group.rank)
            with_rank[bucket] = None
        insort(bucket.groups, (group.key, group))
        group.bucket = bucket

    def _unfile(self, group: Group[C]) -> None:
        """Remove a group from its bucket, which its calls have left."""
        bucket = group.bucket
        assert bucket is not None
        group.bucket = None
        del bucket.groups[bisect_left(bucket.groups, (group.key,))]
        if bucket.groups:
            return
        del self._buckets[group.rank][bucket]
        if not group.large:
            del self._shared[group.rank, bucket.mask, bucket.restriction]
        if not self._buckets[group.rank]:
            del self._buckets[group.rank]
            self._ranks.remove(group.rank)

    def _refile(self, group: Group[C], *, large: bool) -> None:
        """Move a group to another bucket. O(calls of the group)."""
        bucket = group.bucket
        assert bucket is not None
        for call_id, (client, arrival) in group.calls.items():
            bucket.calls.discard(client, arrival, call_id)
        self._unfile(group)
        group.large = large
        self._file(group)
        assert group.bucket is not None
        for call_id, (client, arrival) in group.calls.items():
            group.bucket.calls.add(client, arrival, call_id)

    def _leave_node(self, group: Group[C]) -> None:
        at_node = self._at[group.node]
        del at_node[group]
        if not at_node:
            del self._at[group.node]

    # --- changes of the tree ----------------------------------------------------------------------

    def _held(self, node: PrefixNode) -> None:
        """Note that other workers hold the blocks of a node."""
        if node in self._at:
            self._moved[node] = None

    def _file_moved(self) -> None:
        """File the groups whose holders changed."""
        for node in self._moved:
            for group in self._at.get(node, ()):
                bucket = group.bucket
                assert bucket is not None
                if bucket.mask == node.mask:
                    continue
                if group.large:
                    bucket.mask = node.mask
                else:
                    self._refile(group, large=False)
        self._moved.clear()

    def _appeared(self, key: int) -> None:
        """Rematch the calls that waited for this block, which is now in the tree."""
        if key in self._watchers:
            self._match_again(self._watchers[key])

    def _disappeared(self, node: PrefixNode, kept: int) -> None:
        """Rematch the calls whose match ended at blocks that no worker holds any more."""
        for group in list(self._at.get(node, ())):
            if group.depth > node.start + kept:
                self._match_again(group.calls)

    def _renamed(self, node: PrefixNode, other: PrefixNode, depth: int) -> None:
        """Move the groups of a node, down to this depth, to another node."""
        for group in [group for group in self._at.get(node, ()) if group.depth <= depth]:
            self._leave_node(group)
            group.node = other
            self._at.setdefault(other, {})[group] = None
        if node in self._moved:
            self._moved[other] = None

    def _match_again(self, call_ids: Iterable[str]) -> None:
        for call_id in list(call_ids):
            waiting = self._calls[call_id]
            self.remove(call_id)
            self.add(call_id, waiting.keys, *waiting[2:])
