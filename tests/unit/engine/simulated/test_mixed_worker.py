"""Test the loop with mixed passes: computed times, the budget, sharing, and cancellations in a pass."""

import math

import pytest
from one_engine import OneEngine, costs

from fairserve.engine.simulated.mixed_worker import MixedWorker


def mixed(**changes):
    return costs(loop="mixed", **changes)


def test_a_prompt_is_computed_beside_the_decodes():
    engine = OneEngine(mixed(max_prefill_tokens=8))
    assert isinstance(engine.worker, MixedWorker)
    engine.add("a", 6, 3)
    engine.add("b", 10, 2, at_s=16.5)  # within a's first decode step
    assert engine.finish() == [
        ("started", "a", 0.0),
        ("first", "a", 16.0),
        ("started", "b", 17.125),
        # seven tokens of b beside one of a
        ("ended", "a", 17.125 + 10 + 7 + 0.125, 3),
        ("first", "b", 34.25 + 10 + 3),
        ("ended", "b", 47.25 + 1.125, 2),
    ]
    assert engine.worker.busy_s == engine.now_s
    assert engine.worker.next_s == math.inf


def test_a_pass_costs_the_tokens_that_its_decodes_hold():
    engine = OneEngine(mixed(decode_s_per_held_token=0.5, prefill_s_per_pair=0.25))
    engine.add("a", 6, 2)
    engine.add("b", 4, 1, at_s=1.0)
    log = engine.finish()
    first_s = 10 + 6 + 0.25 * 21
    assert log[1] == ("first", "a", first_s)
    # a holds seven tokens, the new one included
    both_s = 10 + 4 + 0.25 * 10 + 0.125 + 0.5 * 7
    assert log[-1] == ("ended", "b", first_s + both_s, 1)
    assert ("ended", "a", first_s + both_s, 2) in log


def test_long_prompts_wait_while_decodes_fill_the_pass():
    engine = OneEngine(mixed(max_prefill_tokens=4))
    for name in "abcd":
        engine.add(name, 1, 3)
    engine.add("long", 3, 1)
    times = {entry[:2]: entry[2] for entry in engine.finish()}
    assert times["first", "d"] == 14.0
    # the next two passes decode for four and have no token left
    assert times["ended", "d"] == times["started", "long"] == 14.0 + 2 * 1.5


def test_a_prompt_is_shared_once_it_is_completely_computed():
    engine = OneEngine(mixed(max_prefill_tokens=30))
    engine.add("a", 9, 5, blocks=[1, 2])
    engine.add("b", 9, 5, blocks=[1, 2])  # in the same pass: computed again
    engine.add("c", 9, 1, blocks=[1, 2], at_s=1.0)
    engine.finish()
    assert engine.cached == {"a": 0, "b": 0, "c": 8}


@pytest.mark.parametrize("name", ["decoding", "prefilling", "waiting"])
def test_a_call_cancelled_in_a_mixed_pass_leaves_nothing(name):
    engine = OneEngine(mixed(max_prefill_tokens=8, kv_capacity_tokens=40))
    engine.add("decoding", 6, 10, blocks=[1])
    engine.add("prefilling", 20, 2, blocks=[2, 3, 4, 5, 6], at_s=16.0)
    engine.add("waiting", 6, 2)
    engine.advance_to(20.0)
    assert engine.worker.running == 2
    generated = engine.worker.cancel(name, engine.now_s)
    assert generated == (2 if name == "decoding" else 0)  # the third one is running
    engine.finish()
    ended = {entry[1] for entry in engine.log if entry[0] == "ended"}
    assert ended == {"decoding", "prefilling", "waiting"} - {name}
    assert (engine.worker.waiting, engine.worker.running) == (0, 0)
    engine.add("all", 38, 2)
    assert engine.finish()[-1][:2] == ("ended", "all")


def test_progress_counts_a_mixed_pass_at_its_end():
    engine = OneEngine(mixed())
    engine.add("a", 6, 5)
    engine.add("b", 4, 1, at_s=1.0)
    engine.advance_to(16.0)
    pass_s = 10 + 4 + 0.125
    generated_by_then = [
        dict(engine.worker.progress(16.0 + s))["a"] for s in (0.0, pass_s - 0.5, pass_s)
    ]
    assert generated_by_then == [1, 1, 2]
