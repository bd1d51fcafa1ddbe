"""The earliest of a set of calls agrees with a plain dict."""

import random

import pytest

from fairserve.scheduling.feeders.earliest import Earliest


def test_the_earliest_of_the_remaining_calls(seed):
    rng = random.Random(seed)
    calls, plain, left = Earliest(), {}, []
    for number in range(3000):
        if plain and rng.random() < 0.48:
            call_id = rng.choice(list(plain))
            calls.discard(call_id)
            left.append((call_id, plain.pop(call_id)))
        elif left and rng.random() < 0.1:
            call_id, old = left.pop()  # requeued at its old position
            calls.add(call_id, old)
            plain[call_id] = old
        else:
            calls.add(f"c{number}", number)
            plain[f"c{number}"] = number
        calls.discard("never here")
        assert len(calls) == len(plain)
        if plain:
            assert calls.first() == min((number, call_id) for call_id, number in plain.items())


def test_removed_calls_use_no_memory():
    calls = Earliest()
    calls.add("stays", 0)
    for number in range(1, 10_000):
        calls.add(f"c{number}", number)
        calls.discard(f"c{number}")
    assert len(calls._heap) < 200
    assert calls.first() == (0, "stays")


def test_an_empty_set_has_no_earliest_call():
    calls = Earliest()
    calls.add("a", 1)
    calls.discard("a")
    with pytest.raises(IndexError):
        calls.first()
