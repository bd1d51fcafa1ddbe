"""Test the feeder of round robin over clients."""

import json

import pytest
from virtual_cluster import make_call

from fairserve.benchmarks.policies.round_robin_feeder import RoundRobinFeeder
from fairserve.interactions.call import UNRESTRICTED, Restriction


def filled(*names):
    """Return a feeder with these calls; ``a1`` is a call of user ``a``, ``a1:gpu`` needs that kind."""
    feeder = RoundRobinFeeder()
    for name in names:
        call_id, _, kind = name.partition(":")
        kinds = frozenset({kind} - {""})
        feeder.add(make_call(call_id, user=name[0], kinds=kinds))
    return feeder


def order(feeder):
    """Dispatch all calls; return their ids in order."""
    served = []
    while (call := feeder.peek(())) is not None:
        feeder.dispatch(call.call_id, 0)
        served.append(call.call_id)
    return served


def test_clients_take_turns_and_each_is_served_in_the_order_of_arrival():
    feeder = filled("a1", "a2", "a3", "b1", "c1", "b2")
    assert order(feeder) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert len(feeder) == 0


def test_a_client_that_returns_waits_for_a_whole_round():
    feeder = filled("a1", "b1", "b2")
    feeder.dispatch("a1", 0)
    feeder.add(make_call("a2", user="a"))
    assert order(feeder) == ["b1", "a2", "b2"]


def test_an_excluded_call_keeps_its_place_and_its_clients_turn():
    feeder = filled("a1:gpu", "a2:npu", "b1")
    gpu, npu = (Restriction(frozenset({kind})) for kind in ("gpu", "npu"))
    assert feeder.peek((), {gpu}).call_id == "a2"
    assert feeder.peek((), {gpu, npu}).call_id == "b1"
    assert feeder.peek((), {gpu, npu, UNRESTRICTED}) is None
    assert order(feeder) == ["a1", "b1", "a2"]


def test_a_requeued_call_is_the_next_one():
    feeder = filled("a1", "a2", "b1", "b2")
    call = feeder.peek(())
    feeder.dispatch("a1", 0)
    feeder.requeue(call)
    assert order(feeder) == ["a1", "b1", "a2", "b2"]


def test_a_moved_call_keeps_its_place_among_the_calls_of_its_new_client():
    feeder = filled("a1", "b1", "a2", "b2", "b3")
    feeder.move({"a2": ("t", "b")})
    assert order(feeder) == ["a1", "b1", "a2", "b2", "b3"]
    with pytest.raises(KeyError):
        feeder.move({"x": ("t", "b")})


def test_a_call_is_queued_once_and_removed_once():
    feeder = filled("a1", "b1")
    with pytest.raises(ValueError, match="queued already"):
        feeder.add(make_call("a1", user="a"))
    assert feeder.remove("a1").call_id == "a1"
    assert feeder.remove("a1") is None
    assert order(feeder) == ["b1"]


def test_a_restored_feeder_continues_the_round():
    names = ("a1", "a2", "b1", "c1", "c2")
    feeder, restored = filled(*names), RoundRobinFeeder()
    feeder.dispatch("a1", 0)
    calls = {call.call_id: call for call in feeder.waiting()}
    restored.restore(json.loads(json.dumps(feeder.snapshot())), calls)
    for each in (feeder, restored):
        each.add(make_call("d1", user="d"))
    assert order(feeder) == order(restored) == ["b1", "c1", "a2", "d1", "c2"]
