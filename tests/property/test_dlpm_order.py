"""DLPM's incremental walk equals choose that matches, sorts and refills everything again."""

import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_dlpm import PlainDlpm

from fairserve.interactions.call import client_id
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local import dlpm_order
from fairserve.scheduling.local.dlpm import Dlpm
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.local.lpm import Lpm
from fairserve.scheduling.locality.prefix_tree import PrefixTree

BLOCK = 4


class TreeCache:
    """A bounded prefix cache: a tree with choose worker, which publishes changes."""

    def __init__(self, blocks):
        self.tree = PrefixTree()
        self.tree.add_worker("w", blocks)
        self.keys = {}

    def tokens(self, call):
        blocks, _ = self.tree.match(self.keys[call.call_id], -1)
        return min(BLOCK * blocks, call.prompt_tokens - 1)

    def match(self, call):
        keys = self.keys[call.call_id]
        blocks, _ = self.tree.match(keys, -1)
        last = self.tree.find(keys)[1] if blocks else None
        return self.tokens(call), last, keys[blocks] if blocks < len(keys) else None

    def follow(self, listener):
        self.tree.follow(
            lambda first: listener.changed(first),
            lambda node, kept: listener.changed(node, BLOCK * (node.start + kept) if kept else -1),
            lambda node, other, depth: listener.renamed(node, other, BLOCK * depth),
        )


class Both:
    """DLPM and the plain choose with the same events; the engine is a number of tokens."""

    def __init__(self, seed, options, clients, capacity=300, blocks=40):
        self.rng = random.Random(seed)
        self.clients, self.capacity = clients, capacity
        self.cache = TreeCache(blocks)
        self.plain = PlainDlpm(options, self.cache.tokens)
        self.dlpm = Dlpm(options)
        self.numbers = self.offers = 0
        self.held = {}

    def arrive(self):
        rng = self.rng
        self.numbers += 1
        call_id = f"x{self.numbers}"
        chain, keys = (), []
        for _ in range(rng.randint(0, 7)):
            chain = (*chain, rng.randrange(2))
            keys.append(hash(chain) & (2**64 - 1))
        self.cache.keys[call_id] = keys
        call = LocalCall(
            call_id,
            client_id(rng.choice(self.clients)),
            BLOCK * len(keys) + rng.randint(1, 20),
            rng.randint(1, 30),
            weight=rng.choice([1.0, 1.0, 0.5, 4.0]),
        )
        self.dlpm.add(call)
        self.plain.add(call)

    def choose(self, calls):
        return self.rng.choice(sorted(calls))

    def make_events(self):
        """Make any events between two passes."""
        rng, plain = self.rng, self.plain
        for _ in range(rng.choice([0, 0, 1, 2, 6])):
            self.arrive()
        for _ in range(rng.choice([0, 1, 2, 4]) if plain.waiting else 0):
            keys = self.cache.keys[self.choose(plain.waiting)]
            if rng.random() < 0.7:
                self.cache.tree.insert(keys, "w")
            else:
                self.cache.tree.evict(keys[rng.randint(0, len(keys)) :], "w")
        if plain.waiting and rng.random() < 0.2:
            self.end(self.choose(plain.waiting))
        for call_id in list(plain.running):
            tokens = rng.randrange(4)
            self.dlpm.decoded(call_id, tokens)
            plain.decoded(call_id, tokens)
            if rng.random() < 0.2:
                self.end(call_id)
            elif rng.random() < 0.2:
                del self.held[call_id]
                self.dlpm.requeue(call_id)
                plain.requeue(call_id)

    def end(self, call_id):
        self.held.pop(call_id, None)
        self.dlpm.finish(call_id)
        self.plain.finish(call_id)

    def step(self):
        """Run choose pass, sometimes aborted: every offer is the same."""
        rng, walk = self.rng, self.plain.walk()
        self.dlpm.start_pass(self.cache)
        for _ in range(rng.choice([0, 1, 4, 1000, 1000])):
            offered, expected = self.dlpm.peek(), next(walk, None)
            assert offered is expected
            if offered is None:
                break
            matched = self.cache.tokens(offered)
            need = offered.prompt_tokens - matched + offered.max_output_tokens
            if sum(self.held.values()) + need <= self.capacity:
                self.held[offered.call_id] = need
                self.dlpm.accept(matched)
                walk.send(matched)
            else:
                self.dlpm.skip()
                walk.send(None)
            self.offers += 1
        walk.close()

    def same_deficits(self):
        for prefix, q in self.plain.q.items():
            assert self.dlpm.deficit(client_id(prefix)) == pytest.approx(q, abs=1e-6)


FLAT = [(f"c{number}",) for number in range(6)]
NESTED = [(f"t{tenant}", f"u{user}") for tenant in range(3) for user in range(2 + 2 * tenant)]
DEEP = [(f"t{t}", f"a{a}", f"u{u}") for t in range(2) for a in range(2) for u in range(3)]
UNEVEN = [*FLAT[:2], *NESTED, *DEEP[:6]]


@given(
    st.integers(0, 2**32),
    st.sampled_from([FLAT, FLAT[:2], NESTED, DEEP, UNEVEN]),
    st.sampled_from([1.0, 16.0, 64.0, 1024.0]),
    st.sampled_from([0, 1, 3, 16]),
    st.sampled_from([None, 0.0, 50.0, 5000.0]),
    st.sampled_from([1, 3, 16]),
)
def test_every_offer_and_deficit_is_equal(seed, clients, quantum, max_bypass, advance, many):
    """From ``many`` members on, those that gain credit enter their heap together."""
    options = DlpmOptions(
        quantum=quantum,
        max_bypass=max_bypass,
        refill_when_stuck=advance is not None,
        stuck_advance=advance or 0.0,
    )
    both = Both(seed, options, clients)
    with patch.object(dlpm_order, "_MANY", many):
        for _ in range(60):
            both.make_events()
            both.step()
            both.same_deficits()
            assert len(both.dlpm) == len(both.plain.waiting)
    assert both.offers


def test_every_group_affected_by_an_eviction_is_matched():
    """Two groups reach the same match, and then choose of their calls matches more."""
    cache, lpm = TreeCache(40), Lpm()
    cache.tree.insert([1, 2, 3, 4], "w")
    for call_id, last in (("a", 4), ("b", 4), ("c", 5)):
        cache.keys[call_id] = [1, 2, 3, last]
        lpm.add(LocalCall(call_id, "u", 100, 1))
    lpm.start_pass(cache)
    cache.tree.evict([3, 4], "w")
    cache.tree.insert([1, 2, 3, 5], "w")
    lpm.start_pass(cache)
    assert lpm.peek().call_id == "c"


def test_ended_calls_leave_nothing():
    both = Both(1, DlpmOptions(quantum=1e6), NESTED)
    for _ in range(100):
        both.make_events()
        both.step()
    for call_id in [*both.plain.waiting, *both.plain.running]:
        both.end(call_id)
    order, places = both.dlpm._order, both.dlpm._places
    groups = places._groups
    assert all(order.value(path) <= 0 for path in order._clients), "in debt, or never refilled"
    assert not any((groups._at, groups._awaiting, groups._new, order.starved))
    assert not any((len(both.dlpm), places.placed))
    assert not both.dlpm._calls
