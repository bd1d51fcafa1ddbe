"""Test the prefix tree by examples: locks, block events, listeners, splits and bounds."""

import random

import pytest
from prefix_trees import WORKERS, blocks_of, check_structure

from fairserve.scheduling.locality import block_map, segments
from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.locality.prefix_tree import PrefixTree


def test_a_lock_covers_only_blocks_that_the_worker_holds():
    """Blocks that another worker holds below are not locked; this one may lock them later."""
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


def test_events_of_locked_blocks_are_ignored():
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
    assert blocks_of(tree, "w0") == len(tree) == 7
    assert blocks_of(tree, "w1") == 0, "it has not got the block above"
    check_structure(tree)


def test_a_cleared_worker_keeps_its_number():
    tree = PrefixTree()
    for name in WORKERS[:2]:
        tree.add_worker(name, 100)
        tree.insert([1, 2, 3], name)
    slot = tree.workers.slot("w0")
    tree.clear_worker("w0")
    tree.clear_worker("nobody")
    assert (blocks_of(tree, "w0"), blocks_of(tree, "w1")) == (0, 3)
    assert tree.workers.slot("w0") == slot
    tree.insert([1, 2], "w0")
    assert tree.match([1, 2, 3], tree.mask(["w0"])) == (2, 1 << slot)


def test_listeners_are_notified_of_first_and_last_holders():
    tree, events = PrefixTree(), []
    tree.follow(
        lambda key: events.append(("+", key)),
        lambda node, kept: events.append(("-", node, node.start, kept)),
        lambda node, other, depth: events.append(("=", node, other, depth)),
    )
    tree.add_worker("w0", 4)
    tree.add_worker("w1", 4)
    tree.insert([1, 2, 3], "w0")
    tree.insert([1, 2, 4], "w0")
    three, four, shared = (tree.find(keys)[1] for keys in ([1, 2, 3], [1, 2, 4], [1, 2]))
    assert events == [("+", 1), ("=", three, shared, 2), ("+", 4)]
    tree.insert([1, 2], "w1")
    tree.insert([5, 6], "w0")  # two too many: the leaf 3, then 4
    assert events[3:] == [("+", 5), ("-", three, 2, 0), ("-", four, 2, 0)]
    upper = tree.find([5, 6])[1]
    tree.insert([5, 6, 7], "w0")  # one too many: 1 and 2, which the other still holds
    joined = tree.find([5, 6, 7])[1]
    tree.evict([6], "w0")
    assert events[6:] == [("=", upper, joined, 3), ("+", 7), ("-", joined, 0, 1)]
    tree.remove_worker("w0")
    tree.remove_worker("w1")
    assert events[9:] == [("-", joined, 0, 0), ("-", shared, 0, 0)]
    assert len(tree) == 0


def test_the_block_map_exists_only_while_block_events_arrive(monkeypatch):
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


def test_splits_are_merged_after_their_branches_are_removed():
    """Otherwise a prefix that many prompts left at different points would be cut to single blocks."""
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


def test_a_long_chain_of_turns_does_not_recurse():
    tree = PrefixTree()
    tree.add_worker("w0", 10_000)
    keys = list(range(5000))
    for turn in range(1, 5001):
        tree.insert(keys[:turn], "w0")
    assert tree.match(keys, 1) == (5000, 1)
    tree.evict([0], "w0")
    assert len(tree) == 0


def test_invalid_input_is_rejected():
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
