"""Test the KV events of the prefix trie: names, runs, and overflows of a slow publisher."""

import random

import numpy as np

from fairserve.engine.kv_events.dialect import AllBlocksCleared, BlockRemoved, BlockStored
from fairserve.engine.torch.page_changes import PageChanges, PageNames
from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.engine.torch.prefix_trie import PrefixTrie


def page(number):
    return tuple(range(100 * number, 100 * number + PAGE_TOKENS))


class Publishing:
    """A trie whose changes become events at each flush; ``room``: whether the queue accepts them."""

    def __init__(self):
        self.trie, self.names = PrefixTrie(), PageNames()
        self.room, self.events = True, []
        self.changes = PageChanges(self._put)
        self.changes.follow(self.trie)

    def _put(self, changes):
        if self.room:
            self.events += self.names.events(changes)
        return self.room

    def store(self, salt, *numbers):
        node = self.trie.match(salt, [page(n) for n in numbers])
        for number in numbers[node.depth :]:
            node = self.trie.insert(node, page(number), 0)
        return node

    def flush(self):
        self.events = []
        self.changes.flush()
        return self.events


def mirror(events, held):
    """Apply events to ``{name: (parent, tokens)}``, as any reader would."""
    for event in events:
        if isinstance(event, AllBlocksCleared):
            held.clear()
        elif isinstance(event, BlockRemoved):
            for name in event.block_hashes:
                del held[name]
        else:
            parent = event.parent_block_hash
            for index, name in enumerate(event.block_hashes):
                start = index * event.block_size
                tokens = tuple(event.token_ids[start : start + event.block_size])
                assert parent is None or parent in held
                held[name] = (parent, tokens)
                parent = name


def paths(held):
    """Return the prefixes of such a mirror, as tuples of tokens."""

    def path(name):
        parent, tokens = held[name]
        return (*(path(parent) if parent is not None else ()), tokens)

    return {path(name) for name in held}


def cached(trie):
    return {tuple(reversed([each.tokens for each in node.path()])) for node in trie.nodes()}


def test_consecutive_pages_are_one_event_with_the_salt_first():
    published = Publishing()
    published.store("salt", 1, 2, 3)
    published.store("salt", 1, 2, 4)
    first, second = published.flush()
    assert first.block_size == PAGE_TOKENS
    assert list(first.token_ids) == [*page(1), *page(2), *page(3)]
    assert (first.parent_block_hash, first.extra_keys) == (None, [["salt"], None, None])
    assert second.parent_block_hash == first.block_hashes[1]
    assert (list(second.token_ids), second.extra_keys) == (list(page(4)), None)
    assert published.flush() == []


def test_names_depend_on_salt_and_whole_prefix():
    """Names are equal on every worker and after every restart, so the first one is fixed here."""
    published, other = Publishing(), Publishing()
    published.store("", 1, 2)
    other.store("", 5, 6)
    other.flush()
    other.store("", 1, 2)
    (ours,) = published.flush()
    assert other.flush() == [ours]
    assert ours.block_hashes[0] == 8586444799196525743
    names = set(ours.block_hashes)
    for salt, path in (("x", (1, 2)), ("", (2, 1)), ("", (3, 2))):
        published.store(salt, *path)
        names.update(*(event.block_hashes for event in published.flush()))
    assert len(names) == 8


def test_evictions_are_published_in_order():
    published = Publishing()
    published.store("", 1, 2, 3)
    (stored,) = published.flush()
    published.trie.evict_one()
    published.trie.evict_one()
    published.store("", 1, 9)
    published.trie.evict_one()
    removed, again, last = published.flush()
    assert removed == BlockRemoved(stored.block_hashes[:0:-1], "GPU")
    assert isinstance(again, BlockStored)
    assert last.block_hashes == again.block_hashes
    assert list(published.names._digests) == [next(iter(published.trie.nodes())).node_id]


def test_a_reader_ends_with_the_cached_pages(seed):
    """A trie that was not followed for a while is published as a whole."""
    rng, published, held, overflows = random.Random(seed), Publishing(), {}, 0
    numbers = np.random.default_rng(seed).integers(0, 6, (400, 4)).tolist()
    for path in numbers:
        published.room = rng.random() < 0.7
        published.store(rng.choice(["", "s"]), *path[: rng.randint(1, 4)])
        while published.trie.cached_pages > 25 or (
            published.trie.cached_pages and rng.random() < 0.3
        ):
            published.trie.evict_one()
        events = published.flush()
        overflows += not published.room
        mirror(events, held)
        if published.room:
            assert len(held) == published.trie.cached_pages
            assert paths(held) == cached(published.trie)
    assert overflows > 50


def test_changes_are_not_collected_without_a_listener():
    published = Publishing()
    published.store("", 1)
    published.room = False
    published.flush()
    for number in range(100):
        published.store("", number)
        published.flush()
    assert published.changes._changes == []
    published.room = True
    cleared, *rest = published.flush()
    assert cleared == AllBlocksCleared()
    assert sum(len(event.block_hashes) for event in rest) == 100
    assert published.flush() == []
