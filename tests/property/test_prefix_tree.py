"""The prefix tree against plain sets of prefixes: matches, capacities, evictions and locks."""

import random
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairserve.scheduling import block_map, segments
from fairserve.scheduling.block_keys import BlockHasher
from fairserve.scheduling.prefix_tree import PrefixTree

BLOCK = 4
WORKERS = ["w0", "w1", "w2"]


class PlainCache:
    """One worker: an LRU of prefixes as tuples of tokens, the deepest block of a use the oldest."""

    def __init__(self, capacity):
        self.held = OrderedDict()
        self.capacity = capacity

    def insert(self, prefixes):
        for prefix in reversed(prefixes):
            self.held.pop(prefix, None)
            self.held[prefix] = None
        while len(self.held) > self.capacity:
            self.held.popitem(last=False)

    def evict(self, prefix):
        for each in [p for p in self.held if p[: len(prefix)] == prefix]:
            del self.held[each]

    def match(self, prefixes):
        return max((n + 1 for n, prefix in enumerate(prefixes) if prefix in self.held), default=0)


def prefixes_of(tokens):
    return [tuple(tokens[: (n + 1) * BLOCK]) for n in range(len(tokens) // BLOCK)]


prompts = st.lists(st.integers(0, 2), max_size=6).map(
    lambda blocks: [token for token in blocks for _ in range(BLOCK)]
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "match", "evict", "remove"]),
        prompts,
        st.integers(0, 2),
    ),
    max_size=60,
)


def check_structure(tree):
    """Every node's holders hold its parent; counts, maps and recency lists agree."""
    nodes = set(tree._segments.heads.values())
    assert sum(len(node.keys) for node in nodes) == len(tree)
    for key, node in tree._segments.heads.items():
        assert node.keys[0] == key
    for node in nodes:
        assert node.mask
        assert node.keys
        assert set(node.links) == {n for n in range(3) if node.mask >> n & 1}
        above = node.parent
        assert node in above.children
        if above.parent is not None:
            assert node.mask & ~above.mask == 0
            assert above.end == node.start
    for slot, cache in tree._caches.items():
        listed = [link.node for link in cache]
        assert set(listed) == {node for node in nodes if slot in node.links}
        assert cache.blocks == sum(len(node.keys) for node in listed)
        seen = set()
        for node in listed:  # children are less recently used than their parents
            assert node.parent not in seen
            seen.add(node)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(1, 12))
def test_one_worker_is_equal_to_a_plain_lru_of_blocks(history, capacity):
    hasher, tree, plain = BlockHasher(1, BLOCK), PrefixTree(), PlainCache(capacity)
    tree.add_worker("w0", capacity)
    for kind, tokens, _ in history:
        keys, prefixes = hasher.keys(np.array(tokens, dtype=np.uint32)), prefixes_of(tokens)
        if kind == "insert":
            tree.insert(keys, "w0")
            plain.insert(prefixes)
        elif kind == "evict" and prefixes:
            tree.evict(keys[-1:], "w0")
            plain.evict(prefixes[-1])
        elif kind == "remove":
            tree.remove_worker("w0")
            tree.add_worker("w0", capacity)
            plain = PlainCache(capacity)
        assert tree.match(keys, -1)[0] == plain.match(prefixes)
        assert len(tree) == tree.blocks_of("w0") == len(plain.held)
        check_structure(tree)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_several_workers_are_equal_to_plain_sets_while_nothing_must_go(history):
    hasher, tree = BlockHasher(1, BLOCK), PrefixTree()
    plain = {name: PlainCache(10_000) for name in WORKERS}
    for name in WORKERS:
        tree.add_worker(name, 10_000)
    for kind, tokens, number in history:
        worker = WORKERS[number]
        keys, prefixes = hasher.keys(np.array(tokens, dtype=np.uint32)), prefixes_of(tokens)
        if kind == "insert":
            tree.insert(keys, worker)
            plain[worker].insert(prefixes)
        elif kind == "evict" and prefixes:
            tree.evict(keys[-1:], worker)
            plain[worker].evict(prefixes[-1])
        elif kind == "remove":
            tree.remove_worker(worker)
            tree.add_worker(worker, 10_000)
            plain[worker] = PlainCache(10_000)
        open_workers = WORKERS[: number + 1]
        blocks, mask = tree.match(keys, tree.mask(open_workers))
        matches = {name: plain[name].match(prefixes) for name in open_workers}
        longest = max(matches.values())
        assert blocks == longest
        expected = {name for name in open_workers if longest and matches[name] == longest}
        assert {name for name in WORKERS if tree.holds(name, mask)} == expected
        assert len(tree) == len({p for cache in plain.values() for p in cache.held})
        check_structure(tree)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(1, 12), st.integers(0, 60))
def test_bounded_workers_forget_no_more_than_they_must(history, capacity, cut):
    """A worker's part never exceeds its capacity, holds what it was given last, and is closed.

    A snapshot in the middle goes on as the original does.
    """
    hasher, tree = BlockHasher(1, BLOCK), PrefixTree()
    for name in WORKERS:
        tree.add_worker(name, capacity)
    inserted = {name: set() for name in WORKERS}
    copies = []
    for step, (kind, tokens, number) in enumerate(history):
        worker = WORKERS[number]
        keys, prefixes = hasher.keys(np.array(tokens, dtype=np.uint32)), prefixes_of(tokens)
        if step == cut:
            copies.append(PrefixTree())
            copies[0].restore(tree.snapshot())
        for each in (tree, *copies):
            if kind == "insert":
                each.insert(keys, worker)
            elif kind == "evict":
                each.evict(keys[-2:], worker)
            elif kind == "remove":
                each.remove_worker(worker)
                each.add_worker(worker, capacity)
        if kind == "insert":
            inserted[worker].update(prefixes)
            assert tree.match(keys, tree.mask([worker]))[0] >= min(1, len(keys), capacity)
            if len(keys) <= capacity:
                assert tree.match(keys, tree.mask([worker]))[0] == len(keys)
        for name in WORKERS:
            assert tree.blocks_of(name) <= capacity
            depth = tree.match(keys, tree.mask([name]))[0]
            assert depth == 0 or prefixes[depth - 1] in inserted[name]
        check_structure(tree)
        for copy in copies:
            assert copy.snapshot() == tree.snapshot()


def locked_blocks(tree):
    return [key for link in tree._caches[0] if link.locks for key in link.node.keys]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "lock", "unlock", "resize"]), prompts), max_size=60
    ),
    st.integers(1, 12),
)
def test_locked_paths_stay(history, capacity):
    hasher, tree = BlockHasher(1, BLOCK), PrefixTree()
    tree.add_worker("w0", capacity)
    locks = []
    for kind, tokens in history:
        keys = hasher.keys(np.array(tokens, dtype=np.uint32))
        if kind == "insert":
            tree.insert(keys, "w0")
        elif kind == "lock":
            depth = tree.match(keys, -1)[0]
            locks.append((tree.lock(keys, "w0"), keys[:depth]))
        elif kind == "resize":
            capacity = 1 + len(tokens)
            tree.resize("w0", capacity)
        elif locks:
            node, _ = locks.pop(0)
            tree.unlock(node, "w0")
        for _, held in locks:
            assert tree.match(held, -1)[0] == len(held)
        locked = len(locked_blocks(tree))
        if kind in ("insert", "resize"):  # the unlocked ones have gone where there were too many
            assert tree.blocks_of("w0") <= max(capacity, locked)
        assert tree.locked_blocks("w0") == locked
        check_structure(tree)
    for node, _ in locks:
        tree.unlock(node, "w0")
    assert not locked_blocks(tree)
    assert tree.locked_blocks("w0") == 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["insert", "lock", "unlock", "evict"]), prompts), max_size=60
    )
)
def test_locked_blocks_are_counted_and_stay_whatever_news_say(history):
    hasher, tree, locks = BlockHasher(1, BLOCK), PrefixTree(), []
    tree.add_worker("w0", 6)
    for kind, tokens in history:
        keys = hasher.keys(np.array(tokens, dtype=np.uint32))
        if kind == "insert":
            tree.insert(keys, "w0")
        elif kind == "lock":
            locks.append(tree.lock(keys, "w0"))
        elif kind == "evict":
            before = locked_blocks(tree)
            tree.evict(keys[-1:], "w0")
            assert locked_blocks(tree) == before
        elif locks:
            tree.unlock(locks.pop(0), "w0")
        assert tree.locked_blocks("w0") == len(locked_blocks(tree))
        check_structure(tree)


def test_a_split_keeps_its_locks():
    tree = PrefixTree()
    tree.add_worker("w0", 4)
    tree.insert([1, 2, 3], "w0")
    node = tree.lock([1, 2, 3], "w0")
    tree.insert([1, 4], "w0")
    tree.insert([5, 6, 7, 8], "w0")  # wants everything else gone
    assert tree.match([1, 2, 3], 1) == (3, 1)
    tree.unlock(node, "w0")
    tree.insert([5, 6, 7, 8], "w0")
    assert tree.match([1, 2, 3], 1) == (0, 0)


def test_a_lock_is_of_what_the_worker_holds():
    """Not of what another one holds below, which the worker may compute and lock later."""
    tree = PrefixTree()
    tree.add_worker("w0", 3)
    tree.add_worker("w1", 9)
    tree.insert([1], "w0")
    tree.insert([1, 2, 3], "w1")
    first = tree.lock([1, 2, 3], "w0")
    tree.insert([1, 2, 3], "w0")
    second = tree.lock([1, 2, 3], "w0")
    tree.unlock(first, "w0")
    tree.insert([7, 8], "w0")
    assert tree.match([1, 2, 3], tree.mask(["w0"]))[0] == 3
    tree.unlock(second, "w0")


def test_news_of_a_block_in_the_middle_takes_what_is_below_it():
    tree = PrefixTree()
    for name in WORKERS[:2]:
        tree.add_worker(name, 100)
        tree.insert([1, 2, 3, 4, 5], name)
    tree.insert([1, 2, 3, 6], "w0")
    tree.evict([3, 99], "w0")
    assert tree.match([1, 2, 3, 4, 5], tree.mask(["w0"])) == (2, 1)
    assert tree.match([1, 2, 3, 4, 5], tree.mask(["w1"])) == (5, 2)
    assert tree.match([1, 2, 3, 6], -1) == (3, 2)
    assert tree.blocks_of("w0") == 2
    tree.evict([5, 4], "w1")
    assert len(tree) == 3
    check_structure(tree)


def test_news_of_a_locked_block_are_of_no_consequence():
    tree = PrefixTree()
    tree.add_worker("w0", 100)
    tree.insert([1, 2, 3, 4, 5], "w0")
    node = tree.lock([1, 2, 3], "w0", exact=True)
    assert tree.locked_blocks("w0") == 3, "the path and nothing beyond"
    tree.evict([5, 2], "w0")
    assert tree.match([1, 2, 3, 4, 5], 1) == (4, 1)
    tree.unlock(node, "w0")
    tree.evict([2], "w0")
    assert tree.match([1, 2, 3, 4, 5], 1) == (1, 1)
    check_structure(tree)


def test_blocks_are_stored_below_a_block():
    tree = PrefixTree()
    for name in WORKERS[:2]:
        tree.add_worker(name, 100)
    tree.insert([1, 2, 3, 4], "w0")
    tree.insert_below(2, [5, 6], "w0")
    tree.insert_below(6, [7], "w0")
    tree.insert_below(3, [4], "w0")
    tree.insert_below(2, [8], "w1")
    tree.insert_below(99, [8], "w0")
    tree.insert_below(2, [8], "nobody")
    assert tree.match([1, 2, 5, 6, 7], 1) == (5, 1)
    assert tree.blocks_of("w0") == len(tree) == 7
    assert tree.blocks_of("w1") == 0, "it has not got the block above"
    check_structure(tree)


def test_a_cleared_worker_keeps_its_number():
    tree = PrefixTree()
    for name in WORKERS[:2]:
        tree.add_worker(name, 100)
        tree.insert([1, 2, 3], name)
    slot = tree.workers.slot("w0")
    tree.clear_worker("w0")
    tree.clear_worker("nobody")
    assert (tree.blocks_of("w0"), tree.blocks_of("w1")) == (0, 3)
    assert tree.workers.slot("w0") == slot
    tree.insert([1, 2], "w0")
    assert tree.match([1, 2, 3], tree.mask(["w0"])) == (2, 1 << slot)


def test_followers_are_told_of_first_and_last_holders():
    tree, told = PrefixTree(), []
    tree.follow(
        lambda key: told.append(("+", key)),
        lambda node, kept: told.append(("-", node, node.start, kept)),
        lambda node, other, depth: told.append(("=", node, other, depth)),
    )
    tree.add_worker("w0", 4)
    tree.add_worker("w1", 4)
    tree.insert([1, 2, 3], "w0")
    tree.insert([1, 2, 4], "w0")
    three, four, shared = (tree.find(keys)[1] for keys in ([1, 2, 3], [1, 2, 4], [1, 2]))
    assert told == [("+", 1), ("=", three, shared, 2), ("+", 4)]
    tree.insert([1, 2], "w1")
    tree.insert([5, 6], "w0")  # two too many: the leaf 3, then 4
    assert told[3:] == [("+", 5), ("-", three, 2, 0), ("-", four, 2, 0)]
    upper = tree.find([5, 6])[1]
    tree.insert([5, 6, 7], "w0")  # one too many: 1 and 2, which the other still has
    joined = tree.find([5, 6, 7])[1]
    tree.evict([6], "w0")
    assert told[6:] == [("=", upper, joined, 3), ("+", 7), ("-", joined, 0, 1)]
    tree.remove_worker("w0")
    tree.remove_worker("w1")
    assert told[9:] == [("-", joined, 0, 0), ("-", shared, 0, 0)]
    assert len(tree) == 0


def test_the_map_of_blocks_is_made_when_news_come_and_given_up_when_none_come(monkeypatch):
    monkeypatch.setattr(block_map, "_NEW_MAX", 5)
    monkeypatch.setattr(block_map, "_SWEEP_MIN", 20)
    tree = PrefixTree()
    tree.add_worker("w", 40)
    for number in range(200):
        tree.insert([100 * number, 100 * number + 1, 100 * number + 2], "w")
        if number % 50 < 25:
            assert tree.holders(100 * number + 1) == 1
            assert tree.holders(7) == 0
            assert len(tree._segments._block_map._nodes) <= 2 * 40 + 20 + 3
        assert len(tree._segments._block_map._new) <= 6
    assert not tree._segments._block_map._nodes
    tree.insert([1, 2, 3, 4], "w")
    tree.holders(1)
    tree.insert([1, 2, 5], "w")  # a split after the map was made
    tree.evict([2], "w")
    assert tree.match([1, 2, 3, 4], -1) == (1, 1)


def test_splits_are_undone_when_their_branches_have_gone():
    """Else a prefix that many prompts left at different points would be cut to single blocks."""
    tree, rng = PrefixTree(), random.Random(0)
    tree.add_worker("w", 120)
    shared = list(range(100))
    for number in range(300):
        tree.insert(shared[: rng.randint(1, 100)] + [1000 + 10 * number + n for n in range(5)], "w")
        tree.insert(shared, "w")
    check_structure(tree)
    path, node = [], tree.find(shared)[1]
    while node.parent is not None:
        path.append(node)
        node = node.parent
    branches = sum(len(node.children or ()) > 1 for node in path)
    assert len(path) <= 2 * branches + 100 // segments._SHORT_BLOCKS + 2


def test_a_conversation_is_one_node():
    tree = PrefixTree()
    tree.add_worker("w", 1000)
    for turn in range(1, 50):
        tree.insert(list(range(5 * turn)), "w")
    assert len(tree._segments.heads) == 1


def test_a_long_chain_of_turns():
    tree = PrefixTree()
    tree.add_worker("w0", 10_000)
    keys = list(range(5000))
    for turn in range(1, 5001):
        tree.insert(keys[:turn], "w0")
    assert tree.match(keys, 1) == (5000, 1)
    tree.evict([0], "w0")
    assert len(tree) == 0


def test_the_tree_is_bounded_by_the_capacity_of_its_workers():
    tree, hasher = PrefixTree(), BlockHasher(1)
    tree.add_worker("w", 100)
    rng = np.random.default_rng(1)
    for _ in range(200):
        tree.insert(hasher.keys(rng.integers(0, 9, size=160).astype(np.uint32)), "w")
    assert len(tree) == 100


def test_bad_input():
    tree = PrefixTree()
    tree.add_worker("w", 1)
    with pytest.raises(ValueError, match="'w' is in the tree already"):
        tree.add_worker("w", 1)
    tree.remove_worker("nobody")
    tree.insert([1], "nobody")
    tree.evict([1], "nobody")
    tree.evict([1], "w")
    assert len(tree) == 0
    with pytest.raises(ValueError, match="block_tokens is 0"):
        BlockHasher(1, 0)
