"""Test the simulated engine: computed times, fused and single steps, a pool without overflows."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from one_engine import BLOCK, OneEngine, calls, costs, replay
from prefix_trees import blocks_of

from fairserve.engine.simulated.cost_model import pairs
from fairserve.engine.simulated.worker import SimulatedWorker


def test_one_call_takes_the_computed_times():
    engine = OneEngine(costs(decode_s_per_held_token=0.5))
    engine.add("a", 6, 3)
    assert engine.finish() == [
        ("started", "a", 0.0),
        ("first", "a", 16.0),
        # two steps with 7 and 8 tokens held
        ("ended", "a", 16.0 + 2 * 1.125 + 0.5 * (7 + 8), 3),
    ]
    assert engine.worker.next_s == math.inf
    assert engine.worker.busy_s == engine.now_s


def test_prompts_are_computed_together_and_before_decoding():
    engine = OneEngine(costs())
    engine.add("a", 6, 3)
    engine.add("b", 4, 2)
    engine.add("late", 2, 1, at_s=20.5)  # in the middle of the first decode step
    assert engine.finish() == [
        ("started", "a", 0.0),
        ("started", "b", 0.0),
        ("first", "a", 20.0),
        ("first", "b", 20.0),
        ("ended", "b", 21.25, 2),
        ("started", "late", 21.25),
        ("first", "late", 33.25),
        ("ended", "late", 33.25, 1),
        ("ended", "a", 34.375, 3),
    ]


def test_a_long_prompt_takes_several_passes_and_costs_its_attention():
    engine = OneEngine(costs(max_prefill_tokens=4, prefill_s_per_pair=0.25))
    engine.add("a", 6, 1)
    log = engine.finish()
    assert log[-1] == ("ended", "a", (10 + 4 + 0.25 * 10) + (10 + 2 + 0.25 * (8 + 3)), 1)
    assert pairs(4, 2) == 11


def test_samples_share_the_prompt_and_are_decoded_together():
    engine = OneEngine(costs())
    engine.add("a", 6, 3, samples=4)
    assert engine.finish()[-1] == ("ended", "a", 16.0 + 2 * 1.5, 12)


def test_cached_blocks_are_not_recomputed():
    engine = OneEngine(costs())
    engine.add("a", 9, 2, blocks=[1, 2])
    engine.add("b", 10, 1, blocks=[1, 2], at_s=100.0)
    engine.add("c", 8, 1, blocks=[1, 2], at_s=200.0)  # its last token is computed nevertheless
    engine.finish()
    assert engine.cached == {"a": 0, "b": 8, "c": 7}
    assert engine.log[-3:] == [
        ("started", "c", 200.0),
        ("first", "c", 211.0),
        ("ended", "c", 211.0, 1),
    ]


def test_a_prompt_is_shared_from_the_pass_that_computes_it():
    engine = OneEngine(costs(max_prefill_tokens=8))
    engine.add("a", 17, 2, blocks=[1, 2, 3, 4])
    engine.add("b", 18, 2, blocks=[1, 2, 3, 4])
    assert engine.finish()[:5] == [
        ("started", "a", 0.0),
        # two passes of 8 tokens leave no capacity; the third has one of a and two of b
        ("started", "b", 36.0),
        ("first", "a", 49.0),
        ("first", "b", 49.0),
        ("ended", "a", 49.0 + 1.25, 2),
    ]
    assert engine.cached == {"a": 0, "b": 16}


def test_a_call_waits_for_capacity_and_evicts_unused_blocks():
    engine = OneEngine(costs(kv_capacity_tokens=24))
    engine.add("a", 12, 4, blocks=[1, 2, 3])
    engine.add("b", 12, 4, blocks=[7, 8, 9])
    engine.finish()
    times = {entry[:2]: entry[2] for entry in engine.log}
    assert times["started", "b"] == times["ended", "a"]
    engine.add("a2", 12, 1, blocks=[1, 2, 3])
    engine.add("b2", 12, 1, blocks=[7, 8, 9], at_s=engine.now_s + 100)
    engine.finish()
    assert engine.cached == {
        "a": 0,
        "b": 0,
        "a2": 8,
        "b2": 8,
    }  # each lost its last block to the other


def test_the_artifact_loop_admits_every_ten_steps():
    engine = OneEngine(costs(loop="vtc-artifact", decode_s_per_sequence=0.0))
    engine.add("a", 2, 50)
    engine.add("b", 2, 1, at_s=15.5)
    engine.add("c", 2, 1, at_s=35.0)
    log = engine.finish()
    assert ("started", "b", 12.0 + 10) in log  # ten steps after a's prefill
    assert ("started", "c", 34.0 + 10) in log
    engine = OneEngine(costs(loop="vtc-artifact", kv_capacity_tokens=60, decode_s_per_sequence=0.0))
    engine.add("a", 2, 33)
    engine.add("b", 20, 20, at_s=13.0)  # fits when 2 * (32 - steps) + 24 + steps < 60
    assert ("started", "b", 12.0 + 29) in engine.finish()  # tried at every step after the tenth


def test_the_artifact_bounds_the_tokens_of_a_prefill_pass():
    engine = OneEngine(costs(loop="vtc-artifact", max_prefill_tokens=10))
    for name in "abc":
        engine.add(name, 4, 5)
    log = engine.finish()
    assert [entry for entry in log if entry[0] == "started"][2][2] > 18.0


@pytest.mark.parametrize("at_s", [0.0, 5.0, 16.0, 17.0, 18.0])
def test_a_cancelled_call_leaves_nothing(at_s):
    engine = OneEngine(costs(kv_capacity_tokens=20))
    engine.add("a", 6, 10, blocks=[1])
    engine.advance_to(at_s)
    generated = engine.worker.cancel("a", engine.now_s)
    assert generated == (0 if at_s < 16 else 1 + int((at_s - 16) // 1.125))
    engine.finish()
    assert not any(entry[0] == "ended" for entry in engine.log)
    assert (engine.worker.waiting, engine.worker.running) == (0, 0)
    engine.add("b", 18, 2)  # needs the whole pool
    assert engine.finish()[-1][:2] == ("ended", "b")


def test_progress_is_the_output_so_far():
    engine = OneEngine(costs())
    engine.add("a", 6, 5, samples=2)
    assert engine.worker.progress(0.0) == []
    engine.advance_to(16.0)
    reports = [engine.worker.progress(16.0 + s) for s in (0.0, 1.2, 1.25, 2.5)]
    assert reports == [[("a", 2)], [("a", 2)], [("a", 4)], [("a", 6)]]


LOOPS = ["prefill-first", "mixed", "paged", "vtc-artifact"]


BEHIND = [*[(1, 8, 1, 0, 0, 0.0)], *[(1, 1, 1, 0, 0, 0.0)] * 8, (1, 1, 1, 0, 0, 5.0)]
"""Another client arrives during a decode and is lifted to the counter of that moment."""


@example(
    [*BEHIND, (1, 1, 1, 0, 0, 14.0), (2, 1, 1, 0, 2, 0.0), (1, 1, 1, 0, 2, 0.0)],
    "vtc-artifact",
    "vtc",
)
@given(calls, st.sampled_from(LOOPS), st.sampled_from(["fcfs", "vtc", "dlpm", "lpm"]))
def test_fused_steps_equal_single_ones(arrivals, loop, scheduler):
    model = costs(loop=loop, decode_s_per_held_token=0.01, max_prefill_tokens=20)
    fused = replay(OneEngine(model, scheduler), arrivals)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedWorker, "_fusable", lambda self: 1)
        single = replay(OneEngine(model, scheduler), arrivals)
    assert [entry[:2] for entry in fused] == [entry[:2] for entry in single]
    for one, other in zip(fused, single, strict=True):
        assert one[2] == pytest.approx(other[2], abs=1e-6)


@given(
    calls,
    st.sampled_from(["prefill-first", "mixed"]),
    st.sampled_from(["fcfs", "vtc", "dlpm", "lpm", "drr", "lcf", "preble_groups"]),
)
def test_every_call_ends_once_and_the_pool_never_overflows(arrivals, loop, scheduler):
    model = costs(loop=loop, kv_capacity_tokens=80, max_prefill_tokens=16)
    engine = OneEngine(model, scheduler)
    worker = engine.worker

    def watch():
        pool = worker._pool
        cached = blocks_of(pool.cache._tree, "here") * BLOCK
        own = sum(pool._room._own.values())
        assert cached + own <= 80
        assert pool.cache.locked_tokens <= cached
        assert own >= sum(n for _, n in worker.progress(engine.now_s))

    log = replay(engine, arrivals, watch)
    outputs = {str(n): output * samples for n, (_, output, samples, *_) in enumerate(arrivals)}
    assert {entry[1]: entry[3] for entry in log if entry[0] == "ended"} == outputs
    assert len(log) == 3 * len(arrivals)
    assert worker._pool.cache.locked_tokens == 0
    assert not worker._pool.cache._keys
    assert not worker._pool._held
    assert not worker._sizes
