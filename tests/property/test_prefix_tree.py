"""The router's prefix tree against plain sets of prefixes, and its resistance to crafted prompts."""

import random
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairserve.scheduling.prefix_tree import BlockHasher, PrefixTree

BLOCK = 4


class PlainTree:
    """Per worker an LRU of prefixes as tuples of tokens."""

    def __init__(self):
        self.workers = {}

    def add_worker(self, worker, capacity):
        self.workers[worker] = (OrderedDict(), capacity)

    def insert(self, prefixes, worker):
        held, capacity = self.workers[worker]
        for prefix in reversed(prefixes):
            held.pop(prefix, None)
            held[prefix] = None
        while len(held) > capacity:
            held.popitem(last=False)

    def match(self, prefixes, workers):
        lengths = {}
        for worker in workers:
            held, _ = self.workers[worker]
            lengths[worker] = max(
                (n + 1 for n, prefix in enumerate(prefixes) if prefix in held), default=0
            )
        longest = max(lengths.values(), default=0)
        return longest, {w for w, length in lengths.items() if longest and length == longest}


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


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(1, 12))
def test_equal_to_plain_sets(history, capacity):
    hasher, tree, plain = BlockHasher(1, BLOCK), PrefixTree(), PlainTree()
    names = ["w0", "w1", "w2"]
    for name in names:
        tree.add_worker(name, capacity)
        plain.add_worker(name, capacity)
    for kind, tokens, number in history:
        worker = names[number]
        keys = hasher.keys(np.array(tokens, dtype=np.uint32))
        prefixes = [tuple(tokens[: (n + 1) * BLOCK]) for n in range(len(keys))]
        if kind == "insert":
            tree.insert(keys, worker)
            plain.insert(prefixes, worker)
        elif kind == "evict" and keys:
            tree.evict(keys[-1:], worker)
            held, _ = plain.workers[worker]
            for prefix in [p for p in held if p[: len(prefixes[-1])] == prefixes[-1]]:
                if prefix == prefixes[-1]:
                    del held[prefix]
                else:  # a worker evicts leaf first, so the rest goes too
                    del held[prefix]
                    tree.evict([hasher.keys(np.array(prefix, dtype=np.uint32))[-1]], worker)
        elif kind == "remove":
            tree.remove_worker(worker)
            tree.add_worker(worker, capacity)
            plain.add_worker(worker, capacity)
        else:
            open_workers = names[: number + 1]
            blocks, mask = tree.match(keys, tree.mask(open_workers))
            longest, holders = plain.match(prefixes, open_workers)
            assert blocks == longest
            assert {w for w in names if tree.holds(w, mask)} == holders
    assert len(tree) == len({p for held, _ in plain.workers.values() for p in held})
    other = PrefixTree()
    other.restore(tree.snapshot())
    assert other.snapshot() == tree.snapshot()


def test_equal_keys_mean_equal_prefixes():
    rng = np.random.default_rng(0)
    hasher = BlockHasher(5)
    seen = {}
    for _ in range(3000):
        tokens = rng.integers(0, 3, size=32).astype(np.uint32)
        for n, key in enumerate(hasher.keys(tokens)):
            prefix = tokens[: (n + 1) * 16].tobytes()
            assert seen.setdefault(key, prefix) == prefix


def test_salts_and_seeds_separate():
    tokens = np.arange(160, dtype=np.uint32)
    hasher = BlockHasher(1)
    assert hasher.keys(tokens) == BlockHasher(1).keys(tokens)
    assert not set(hasher.keys(tokens)) & set(hasher.keys(tokens, "tenant-a"))
    assert not set(hasher.keys(tokens, "tenant-a")) & set(hasher.keys(tokens, "tenant-b"))
    assert not set(hasher.keys(tokens)) & set(BlockHasher(2).keys(tokens))


def test_swapped_tokens_do_not_collide():
    """A sum without positions would let a crafted permutation match another tenant's prompt."""
    rng = random.Random(0)
    hasher = BlockHasher(9)
    tokens = [rng.randrange(50_000) for _ in range(64)]
    key = hasher.keys(np.array(tokens, dtype=np.uint32))[-1]
    for _ in range(200):
        rng.shuffle(tokens)
        assert hasher.keys(np.array(tokens, dtype=np.uint32))[-1] != key


def test_long_prompts_and_short_ones():
    hasher = BlockHasher(1)
    long = np.zeros(50_000, dtype=np.uint32)
    assert len(hasher.keys(long)) == 3125
    assert len(set(hasher.keys(long))) == 3125
    assert hasher.keys(long[:15]) == []
    assert hasher.keys(long[:100]) == hasher.keys(long)[:6]


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
    assert len(tree) == 0
    with pytest.raises(ValueError, match="block_tokens is 0"):
        BlockHasher(1, 0)
