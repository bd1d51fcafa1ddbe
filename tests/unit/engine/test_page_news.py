"""From the prefix trie to KV events: names, runs, and what happens when nobody can keep up."""

import random

import numpy as np

from fairserve.engine.kv_events.dialect import AllBlocksCleared, BlockRemoved, BlockStored
from fairserve.engine.torch.page_news import PageNames, PageNews
from fairserve.engine.torch.page_pool import PAGE_TOKENS
from fairserve.engine.torch.prefix_trie import PrefixTrie


def page(number):
    return tuple(range(100 * number, 100 * number + PAGE_TOKENS))


class Told:
    """A trie whose news are made into events at each flush; ``room`` says whether they are taken."""

    def __init__(self):
        self.trie, self.names = PrefixTrie(), PageNames()
        self.room, self.events = True, []
        self.news = PageNews(self._put)
        self.news.follow(self.trie)

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
        self.news.flush()
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
    """The prefixes of such a mirror, as tuples of tokens."""

    def path(name):
        parent, tokens = held[name]
        return (*(path(parent) if parent is not None else ()), tokens)

    return {path(name) for name in held}


def cached(trie):
    return {tuple(reversed([each.tokens for each in node.path()])) for node in trie.nodes()}


def test_pages_in_a_row_are_one_event_and_the_first_has_the_salt():
    told = Told()
    told.store("salt", 1, 2, 3)
    told.store("salt", 1, 2, 4)
    first, second = told.flush()
    assert first.block_size == PAGE_TOKENS
    assert list(first.token_ids) == [*page(1), *page(2), *page(3)]
    assert (first.parent_block_hash, first.extra_keys) == (None, [["salt"], None, None])
    assert second.parent_block_hash == first.block_hashes[1]
    assert (list(second.token_ids), second.extra_keys) == (list(page(4)), None)
    assert told.flush() == []


def test_names_are_those_of_salt_and_whole_prefix():
    """On every worker, in every life: so the first one is written down here."""
    told, other = Told(), Told()
    told.store("", 1, 2)
    other.store("", 5, 6)
    other.flush()
    other.store("", 1, 2)
    (ours,) = told.flush()
    assert other.flush() == [ours]
    assert ours.block_hashes[0] == 8586444799196525743
    names = set(ours.block_hashes)
    for salt, path in (("x", (1, 2)), ("", (2, 1)), ("", (3, 2))):
        told.store(salt, *path)
        names.update(*(event.block_hashes for event in told.flush()))
    assert len(names) == 8


def test_evictions_are_told_in_order():
    told = Told()
    told.store("", 1, 2, 3)
    (stored,) = told.flush()
    told.trie.evict_one()
    told.trie.evict_one()
    told.store("", 1, 9)
    told.trie.evict_one()
    removed, again, last = told.flush()
    assert removed == BlockRemoved(stored.block_hashes[:0:-1], "GPU")
    assert isinstance(again, BlockStored)
    assert last.block_hashes == again.block_hashes
    assert list(told.names._digests) == [next(iter(told.trie.nodes())).node_id]


def test_a_reader_ends_with_what_is_cached(seed):
    """Also one that was not listened to for a while."""
    rng, told, held, overflows = random.Random(seed), Told(), {}, 0
    numbers = np.random.default_rng(seed).integers(0, 6, (400, 4)).tolist()
    for path in numbers:
        told.room = rng.random() < 0.7
        told.store(rng.choice(["", "s"]), *path[: rng.randint(1, 4)])
        while told.trie.cached_pages > 25 or (told.trie.cached_pages and rng.random() < 0.3):
            told.trie.evict_one()
        events = told.flush()
        overflows += not told.room
        mirror(events, held)
        if told.room:
            assert len(held) == told.trie.cached_pages
            assert paths(held) == cached(told.trie)
    assert overflows > 50


def test_nothing_is_gathered_while_nobody_listens():
    told = Told()
    told.store("", 1)
    told.room = False
    told.flush()
    for number in range(100):
        told.store("", number)
        told.flush()
    assert told.news._changes == []
    told.room = True
    cleared, *rest = told.flush()
    assert cleared == AllBlocksCleared()
    assert sum(len(event.block_hashes) for event in rest) == 100
    assert told.flush() == []
