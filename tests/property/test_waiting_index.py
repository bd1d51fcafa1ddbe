"""The index of queued calls agrees with a lookup of every call in the prefix tree."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_call_is_found_with_its_match(seed, capacity):
    rng = random.Random(seed)
    tree = PrefixTree()
    index = WaitingIndex(tree)
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
        found, depths = {}, []
        for depth, match, group in index.longest_first(mask):
            assert 1 <= match <= depth
            depths.append(depth)
            for client, calls in group.calls.items():
                assert calls == sorted(calls)
                for arrival, call_id in calls:
                    assert queued[call_id][1:] == (client, arrival)
                    found[call_id] = match
        assert depths == sorted(depths, reverse=True)
        expected = {call_id: tree.match(keys, mask)[0] for call_id, (keys, _, _) in queued.items()}
        assert found == {call_id: match for call_id, match in expected.items() if match}
        assert len(index) == len(queued)
    for call_id in queued:
        index.remove(call_id)
    assert not any((index._calls, index._groups, index._at, index._by_depth))
    assert not any((index._depths, index._watchers))


def test_invalid_ids_are_rejected():
    index = WaitingIndex(PrefixTree())
    index.add("a", [1, 2], "u", 1)
    with pytest.raises(ValueError, match="'a' is indexed already"):
        index.add("a", [1], "u", 2)
    index.remove("nobody")
    assert len(index) == 1
