"""A lazy heap agrees with a plain dict, and holds no more than twice its items."""

import random

import pytest

from fairserve.interactions.lazy_heap import SLACK, LazyHeap


def test_the_first_of_the_remaining_items(seed):
    rng = random.Random(seed)
    heap, plain = LazyHeap(), {}
    for number in range(3000):
        fate, item = rng.random(), rng.choice(list(plain)) if plain else "none"
        if plain and fate < 0.3:
            heap.discard(item)
            del plain[item]
        elif plain and fate < 0.5:
            plain[item] = rng.randrange(1000), item
            heap.set(item, plain[item])
        elif plain and fate < 0.6:
            lower = rng.randrange(1000), item
            plain[item] = min(plain[item], lower)
            heap.lower(item, lower)
        else:
            plain[f"i{number}"] = rng.randrange(1000), f"i{number}"
            heap.set(f"i{number}", plain[f"i{number}"])
        heap.discard("never here")
        assert len(heap) == len(plain)
        assert len(heap._heap) <= 2 * len(heap) + SLACK
        if plain:
            assert heap.first() == min((key, item) for item, key in plain.items())


def test_of_equal_keys_the_first_one_set_is_first():
    heap = LazyHeap()
    for item in "cab":
        heap.set(item, 1)
    assert heap.first() == (1, "c")
    heap.set("c", 2)
    assert heap.first() == (1, "a")


def test_an_empty_heap_has_no_first_item():
    heap = LazyHeap()
    heap.set("a", 1)
    heap.discard("a")
    assert "a" not in heap
    assert not heap._heap, "an idle client keeps nothing"
    with pytest.raises(IndexError):
        heap.first()
