"""The trie agrees with a plain dictionary, with locks and least-recently-used eviction."""

import gc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairserve.engine.torch.prefix_trie import PrefixTrie

PATHS = st.lists(st.sampled_from([(1,), (2,)]), max_size=3)
SALTS = st.sampled_from(["", "", "x"])


class TrieMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.stored, self.evicted = [], []
        self.trie = PrefixTrie(self.stored.append, self.evicted.append)
        self.model = {}  # (salt, path) -> page
        self.used = {}  # (salt, path) -> time of last use
        self.locked = []  # (node, (salt, path)), one entry per lock
        self.starts = {}  # (salt, path) -> result of an earlier match
        self.time = 0
        self.page = 0
        self.changes = 0

    def deepest(self, salt, path):
        return max(
            (n for n in range(1, len(path) + 1) if (salt, path[:n]) in self.model), default=0
        )

    def locks(self, salt, path):
        return sum(1 for _, (s, p) in self.locked if s == salt and p[: len(path)] == path)

    def touch(self, salt, path):
        self.time += 1
        for n in range(1, len(path) + 1):
            self.used[salt, path[:n]] = self.time

    @rule(salt=SALTS, path=PATHS)
    def insert(self, salt, path):
        path = tuple(path)
        node = self.trie.match(salt, path)
        for n in range(node.depth, len(path)):
            self.page += 1
            node = self.trie.insert(node, path[n], self.page)
            self.model[salt, path[: n + 1]] = self.page
            self.used[salt, path[: n + 1]] = 0
            self.changes += 1
            assert self.stored[-1] is node
        self.trie.touch(node)
        self.touch(salt, path)

    @rule(salt=SALTS, path=PATHS, resume=st.booleans())
    def match(self, salt, path, resume):
        path = tuple(path)
        start = self.starts.get((salt, path)) if resume else None
        node = self.trie.match(salt, path, start)
        self.starts[salt, path] = node
        depth = self.deepest(salt, path)
        assert node.depth == depth
        pages = [each.page for each in node.path()][::-1]
        assert pages == [self.model[salt, path[: n + 1]] for n in range(depth)]
        expected = sum(1 for n in range(1, depth + 1) if self.locks(salt, path[:n]) == 0)
        assert self.trie.unlocked_on_path(node) == expected

    @rule(salt=SALTS, path=PATHS)
    def lock(self, salt, path):
        path = tuple(path)[: self.deepest(salt, tuple(path))]
        node = self.trie.match(salt, path)
        self.trie.lock(node)
        self.locked.append((node, (salt, path)))

    @precondition(lambda self: self.locked)
    @rule(data=st.data())
    def unlock(self, data):
        at = data.draw(st.integers(0, len(self.locked) - 1))
        node, (salt, path) = self.locked.pop(at)
        self.trie.touch(node)
        self.touch(salt, path)
        self.trie.unlock(node)

    @precondition(lambda self: self.trie.evictable_pages)
    @rule()
    def evict(self):
        page = self.trie.evict_one()
        leaves = {
            key
            for key in self.model
            if self.locks(*key) == 0
            and not any(s == key[0] and p[:-1] == key[1] for s, p in self.model)
        }
        (gone,) = [key for key, each in self.model.items() if each == page]
        assert gone in leaves
        assert self.used[gone] == min(self.used[key] for key in leaves)
        assert self.evicted[-1].page == page
        del self.model[gone]
        self.changes += 1

    @invariant()
    def counts(self):
        assert self.trie.cached_pages == len(self.model)
        assert sorted(node.page for node in self.trie.nodes()) == sorted(self.model.values())
        locked = sum(1 for key in self.model if self.locks(*key))
        assert self.trie.locked_pages == locked
        assert self.trie.version == self.changes
        # The heap of candidates remains proportional to the number of cached pages.
        assert len(self.trie._leaves) <= 65 + 4 * max(self.page, 1)


TestTrie = TrieMachine.TestCase
TestTrie.settings = settings(stateful_step_count=60)


def test_a_locked_leaf_is_kept_and_the_next_oldest_evicted():
    trie = PrefixTrie()
    root = trie.match("", [])
    for page in (1, 2, 3):
        trie.touch(trie.insert(root, (page,), page))
    trie.lock(trie.match("", [(1,)]))
    assert [trie.evict_one(), trie.evict_one()] == [2, 3]
    with pytest.raises(IndexError):
        trie.evict_one()
    trie.unlock(trie.match("", [(1,)]))
    assert trie.evict_one() == 1


def test_an_earlier_match_is_resumed_after_evictions_and_insertions():
    trie = PrefixTrie()
    keys = [(1,), (2,), (3,)]
    node = trie.match("", [])
    for page, key in enumerate(keys, 1):
        node = trie.insert(node, key, page)
    assert trie.match("", keys) is node
    assert [trie.evict_one(), trie.evict_one()] == [3, 2]
    resumed = trie.match("", keys, node)
    assert resumed.depth == 1
    again = trie.insert(resumed, keys[1], 4)
    assert trie.match("", keys, node) is again


def test_eviction_candidates_do_not_accumulate():
    trie = PrefixTrie()
    node = trie.insert(trie.match("", []), (1,), 1)
    for _ in range(10_000):
        trie.lock(node)
        trie.touch(node)
        trie.unlock(node)
    assert len(trie._leaves) < 100
    assert trie.evict_one() == 1


def test_salts_without_pages_leave_nothing():
    trie = PrefixTrie()
    for number in range(100):
        trie.match(f"salt {number}", [(1,)])
    gc.collect()
    assert len(trie._roots) == 0
