"""Test the loop of vLLM: growing calls, preemption, cached outputs, and a pool without leaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_engine import BLOCK, OneEngine, calls, costs, replay


def paged(**changes):
    return costs(loop="paged", **changes)


def of(log, kind):
    return [entry[1:] for entry in log if entry[0] == kind]


def test_the_last_call_is_preempted_and_computes_what_is_no_longer_cached():
    engine = OneEngine(paged(kv_capacity_tokens=20))
    engine.add("a", 8, 9, blocks=[1, 2])
    engine.add("b", 8, 5, blocks=[3, 4])
    log = engine.finish()
    assert engine.worker.preemptions == 1
    # a takes the fifth block at 26 s, so there is none for b, which has two blocks and one token
    assert of(log, "started") == [("a", 0.0), ("b", 0.0)]
    assert of(log, "first") == [("a", 26.0), ("b", 26.0)]
    # a decodes alone: three tokens in its third block, the fifth of which takes a fourth one
    ended = dict(of_ends(log))
    assert ended["a"][1] == 9
    assert ended["b"][1] == 5
    # b's two blocks are released, the deeper one is taken by a: four tokens and one are computed
    assert ended["a"][0] == 26.0 + 8 * 1.125
    assert ended["b"][0] == ended["a"][0] + (10 + 5) + 3 * 1.125


def of_ends(log):
    return [(name, (at_s, tokens)) for name, at_s, tokens in of(log, "ended")]


def test_a_preempted_call_waits_before_those_that_arrived_after_it():
    engine = OneEngine(paged(kv_capacity_tokens=20))
    engine.add("a", 8, 9)
    engine.add("b", 8, 5)
    engine.add("c", 4, 1, at_s=27.0)
    assert [name for name, *_ in of(engine.finish(), "ended")] == ["a", "c", "b"]
    assert [name for name, _ in of(engine.log, "started")] == ["a", "b", "c"]
    started = dict(of(engine.log, "started"))
    assert started["c"] >= dict(of_ends(engine.log))["a"][0]


def test_the_blocks_of_an_output_are_found_by_the_next_turn():
    engine = OneEngine(paged())
    engine.add("turn", 6, 7, blocks=[1], after=[2, 3])  # twelve of its thirteen tokens are computed
    engine.add("next", 18, 1, blocks=[1, 2, 3, 4], at_s=100.0)
    engine.add("other", 18, 1, blocks=[1, 5, 6, 7], at_s=200.0)
    engine.finish()
    assert engine.cached == {"turn": 0, "next": 12, "other": 4}


def test_the_last_token_of_a_prompt_and_its_block_are_computed():
    engine = OneEngine(paged())
    engine.add("a", 8, 1, blocks=[1, 2])
    engine.add("same", 8, 1, blocks=[1, 2], at_s=100.0)
    engine.finish()
    assert engine.cached["same"] == 4


def test_samples_share_the_prompt_and_have_their_own_outputs():
    engine = OneEngine(paged(kv_capacity_tokens=32))
    engine.add("a", 8, 9, samples=3)  # two blocks, and then two for each sample
    engine.advance_to(18.5)
    assert engine.worker._pool.free_blocks == 3
    assert of(engine.finish(), "ended")[-1][2] == 27
    assert engine.worker._pool.free_blocks == 8


@pytest.mark.parametrize("name", ["a", "b", "waiting"])
def test_a_call_cancelled_after_a_preemption_leaves_nothing(name):
    engine = OneEngine(paged(kv_capacity_tokens=20))
    engine.add("a", 8, 9)
    engine.add("b", 8, 5)
    engine.add("waiting", 8, 1)
    engine.advance_to(30.0)
    assert (engine.worker.running, engine.worker.preemptions) == (1, 1)
    assert dict(engine.worker.progress(30.0)) == {"a": 4, "b": 1}
    assert engine.worker.cancel(name, 30.0) == {"a": 4, "b": 1, "waiting": 0}[name]
    engine.finish()
    assert {entry[0] for entry in of(engine.log, "ended")} == {"a", "b", "waiting"} - {name}
    assert engine.worker._pool.free_blocks == 5


@given(
    calls,
    st.sampled_from(["fcfs", "vtc", "dlpm", "lpm", "drr", "lcf", "preble_groups"]),
    st.integers(15, 30),
)
def test_every_call_ends_once_and_no_block_is_lost(arrivals, scheduler, blocks):
    engine = OneEngine(paged(kv_capacity_tokens=blocks * BLOCK, max_prefill_tokens=16), scheduler)
    worker = engine.worker
    seen = {}

    def watch():
        pool = worker._pool
        held = [block for table in pool._tables.values() for block in table.blocks]
        assert pool.free_blocks + len(set(held)) == blocks
        assert all(pool._pool._references[block] == held.count(block) for block in range(blocks))
        for call_id, tokens in worker.progress(engine.now_s):
            assert tokens >= seen.get(call_id, 0)
            seen[call_id] = tokens

    log = replay(engine, arrivals, watch)
    outputs = {str(n): output * samples for n, (_, output, samples, *_) in enumerate(arrivals)}
    assert {entry[1]: entry[3] for entry in log if entry[0] == "ended"} == outputs
    assert len(log) == 3 * len(arrivals)
    assert not worker._pool._tables
    assert not worker._sizes
    assert not worker._preempted
    assert (worker._sequences, worker._held_tokens, worker._batch_samples) == (0, 0, 0)
