"""The prefix tree equals plain sets of prefixes: matches, capacities, evictions and locks."""

import numpy as np
from histories import histories
from hypothesis import example, given
from hypothesis import strategies as st
from prefix_trees import (
    BLOCK,
    WORKERS,
    PlainCache,
    blocks_of,
    check_structure,
    locked_blocks,
    prefixes_of,
)

from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.locality.prefix_tree import PrefixTree

prompts = st.lists(st.integers(0, 2), max_size=6).map(
    lambda blocks: [token for token in blocks for _ in range(BLOCK)]
)
steps = histories(
    st.tuples(
        st.sampled_from(["insert", "insert", "match", "evict", "remove"]),
        prompts,
        st.integers(0, 2),
    ),
    60,
)


@given(steps, st.integers(1, 12))
def test_one_worker_equals_a_plain_lru_of_blocks(history, capacity):
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
        assert len(tree) == blocks_of(tree, "w0") == len(plain.held)
        check_structure(tree)


@given(steps)
def test_several_workers_equal_plain_sets_without_evictions(history):
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


@given(steps, st.integers(1, 12), st.integers(0, 60))
def test_bounded_workers_evict_no_more_than_necessary(history, capacity, cut):
    """A worker's part never exceeds its capacity, contains its last insertion, and is closed.

    A restored snapshot continues as the original does.
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
            assert blocks_of(tree, name) <= capacity
            depth = tree.match(keys, tree.mask([name]))[0]
            assert depth == 0 or prefixes[depth - 1] in inserted[name]
        check_structure(tree)
        for copy in copies:
            assert copy.snapshot() == tree.snapshot()


@example(
    [
        ("insert", [0] * 2 * BLOCK),
        ("lock", [0] * BLOCK),
        ("resize", []),
        ("unlock", []),
        ("insert", []),
    ],
    2,
)
@given(
    histories(st.tuples(st.sampled_from(["insert", "lock", "unlock", "resize"]), prompts), 60),
    st.integers(1, 12),
)
def test_locked_paths_are_kept(history, capacity):
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
        # Unlocked paths were evicted where there were too many; an empty path inserts nothing.
        if kind == "resize" or (kind == "insert" and tokens):
            assert blocks_of(tree, "w0") <= max(capacity, locked)
        assert tree.locked_blocks("w0") == locked
        check_structure(tree)
    for node, _ in locks:
        tree.unlock(node, "w0")
    assert not locked_blocks(tree)
    assert tree.locked_blocks("w0") == 0


@given(
    histories(
        st.tuples(st.sampled_from(["insert", "lock", "lock", "unlock", "evict", "clear"]), prompts),
        60,
    )
)
def test_locked_blocks_are_counted_and_survive_any_events(history):
    """Evictions reported by a worker do not remove them; only an empty cache does."""
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
        elif kind == "clear":
            tree.clear_worker("w0")
            assert len(tree) == 0
        elif locks:
            tree.unlock(locks.pop(0), "w0")
        assert tree.locked_blocks("w0") == len(locked_blocks(tree))
        check_structure(tree)
