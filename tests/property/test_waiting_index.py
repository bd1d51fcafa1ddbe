"""The index of queued calls agrees with a lookup of every call in the prefix tree."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_wsc import cached_share

from fairserve.interactions.call import UNRESTRICTED, Restriction
from fairserve.scheduling.locality import waiting_index
from fairserve.scheduling.locality.prefix_tree import PrefixTree
from fairserve.scheduling.locality.waiting_index import WaitingIndex

WORKERS = ["w0", "w1", "w2"]


def path(rng):
    """Return a chain of keys, as a hasher makes them: equal key, equal whole prefix."""
    prefix, keys = (), []
    for _ in range(rng.randint(0, 5)):
        prefix = (*prefix, rng.randrange(2))
        keys.append(hash(prefix) & (2**63 - 1))
    return keys


def share(cached, blocks):
    return 16 * cached // (blocks + 1)


class Calls:
    """Calls of a bucket, in no order."""

    def __init__(self):
        self.calls = set()

    def __len__(self):
        return len(self.calls)

    def add(self, *call):
        assert call not in self.calls
        self.calls.add(call)

    def discard(self, *call):
        self.calls.remove(call)


@pytest.fixture(autouse=True, scope="module")
def _large_groups_of_four():
    """Let groups become large and small again with few calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_index, "LARGE", 4)
        patch.setattr(waiting_index, "SMALL", 2)
        yield


def found_by(index, mask, beyond=0):
    """Return the cached share of each call that the index finds."""
    found, ranks = {}, []
    for rank, bucket in index.at_holders(mask):
        ranks.append(rank)
        found.update((call, rank) for call in bucket.calls)
    assert ranks == sorted(ranks, reverse=True)
    for rank, group in index.elsewhere(mask, beyond):
        assert 1 <= rank < group.rank
        own = {(client, arrival, name) for name, (client, arrival) in group.calls.items()}
        assert group.order is None or group.order.calls == own
        assert not own & found.keys()
        found.update((call, rank) for call in own)
    return found


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_call_is_found_with_its_share(seed, capacity):
    rng = random.Random(seed)
    tree = PrefixTree()
    index = WaitingIndex(tree, Calls, share)
    for worker in WORKERS:
        tree.add_worker(worker, capacity)
    queued = {}
    for number in range(120):
        action = rng.random()
        if action < 0.4:
            queued[f"c{number}"] = (path(rng), f"u{rng.randrange(3)}", rng.randrange(1000))
            index.add(f"c{number}", *queued[f"c{number}"])
        elif action < 0.6 and queued:
            call_id = rng.choice(list(queued))
            del queued[call_id]
            index.remove(call_id)
        elif action < 0.9:
            tree.insert(path(rng), rng.choice(WORKERS))
        elif action < 0.95:
            keys = path(rng)
            tree.evict(keys[-1:], rng.choice(WORKERS)) if len(keys) == 5 else None
        else:
            worker = rng.choice(WORKERS)
            tree.remove_worker(worker)
            tree.add_worker(worker, capacity)
        mask = tree.mask(rng.sample(WORKERS, rng.randint(0, 3)))
        expected = {
            (client, arrival, call_id): cached_share(tree, keys, mask)
            for call_id, (keys, client, arrival) in queued.items()
        }
        expected = {call: share for call, share in expected.items() if share}
        assert found_by(index, mask) == expected
        beyond = rng.randint(0, 15)
        some = found_by(index, mask, beyond)
        assert some.items() <= expected.items()
        assert all(share < beyond for call, share in expected.items() if call not in some)
        assert len(index) == len(queued)
    for call_id in queued:
        index.remove(call_id)
    assert not any((index._calls, index._groups, index._at, index._buckets))
    assert not any((index._shared, index._ranks, index._watchers))


def test_invalid_ids_are_rejected():
    index = WaitingIndex(PrefixTree(), Calls, share)
    index.add("a", [1, 2], "u", 1)
    with pytest.raises(ValueError, match="'a' is indexed already"):
        index.add("a", [1], "u", 2)
    index.remove("nobody")
    assert len(index) == 1


def test_excluded_restrictions_are_skipped():
    tree = PrefixTree()
    tree.add_worker("w0", 10)
    tree.insert([1, 2], "w0")
    index = WaitingIndex(tree, Calls, share)
    gpu = Restriction(frozenset({"gpu"}))
    index.add("a", [1, 2, 3], "u", 1, gpu)
    index.add("b", [1, 2, 4], "u", 2)
    mask = tree.mask(["w0"])
    found = [(rank, bucket.calls) for rank, bucket in index.at_holders(mask, {gpu})]
    assert found == [(8, {("u", 2, "b")})]
    assert not list(index.elsewhere(0, 0, {gpu, UNRESTRICTED}))


def test_a_large_group_moves_none_of_its_calls_when_another_worker_stores_its_block():
    tree = PrefixTree()
    for worker in WORKERS:
        tree.add_worker(worker, 100)
    tree.insert([1, 2], "w0")
    touched = []

    class Counted(Calls):
        def discard(self, *call):
            touched.append(call)
            super().discard(*call)

    index = WaitingIndex(tree, Counted, share)
    for number in range(50):
        index.add(f"c{number}", [1, 2], f"u{number}", number)
    touched.clear()
    tree.insert([1, 2], "w1")
    ((rank, bucket),) = index.at_holders(tree.mask(["w1"]))
    assert (rank, len(bucket)) == (10, 50)
    assert not touched


def test_a_selection_visits_a_bounded_number_of_calls_of_groups_without_an_open_holder():
    tree = PrefixTree()
    for worker in WORKERS:
        tree.add_worker(worker, 10_000)
    index = WaitingIndex(tree, Calls, share)
    tree.insert([1], "w1")
    for number in range(2 * waiting_index.MOST_WALKS):
        tree.insert([1, 10 + number], "w0")
        index.add(f"c{number}", [1, 10 + number], "u", number)
    found = list(index.elsewhere(tree.mask(["w1"]), 0))
    assert [rank for rank, _ in found] == [5] * waiting_index.MOST_WALKS


RESTRICTIONS = [UNRESTRICTED, Restriction(kinds=frozenset({"gpu", "vision"})), Restriction(size=3)]


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_a_copy_visits_the_same_calls(seed, most_walks):
    """It gets the calls in the order of their arrival, and no event of the tree before."""
    rng = random.Random(seed)
    tree = PrefixTree()
    index = WaitingIndex(tree, Calls, share)
    for worker in WORKERS:
        tree.add_worker(worker, 12)
    queued = {}
    for number in range(150):
        action = rng.random()
        if action < 0.5:
            queued[f"c{number}"] = (path(rng), "u", number, rng.choice(RESTRICTIONS))
            index.add(f"c{number}", *queued[f"c{number}"])
        elif action < 0.7 and queued:
            call_id = rng.choice(list(queued))
            del queued[call_id]
            index.remove(call_id)
        else:
            tree.insert(path(rng), rng.choice(WORKERS))
        if rng.random() < 0.5:
            list(index.elsewhere(tree.mask(WORKERS[:1]), 0))
    copy = WaitingIndex(tree, Calls, share)
    for call_id, call in queued.items():
        copy.add(call_id, *call)
    copy.enlarge(index.large())
    assert copy.large() == index.large()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_index, "MOST_WALKS", most_walks)
        for number in range(8):
            mask = tree.mask([name for bit, name in enumerate(WORKERS) if number >> bit & 1])
            for excluded in ((), RESTRICTIONS[1:2]):
                found, expected = (
                    [(rank, group.large, sorted(group.calls)) for rank, group in groups]
                    for groups in (
                        copy.elsewhere(mask, 0, excluded),
                        index.elsewhere(mask, 0, excluded),
                    )
                )
                assert found == expected
