"""Test the charges of calls in vLLM's batch, including aborted and preempted ones."""

import pytest
from vllm_world import BOTH, World, watch


@BOTH
def test_waiting_and_running_requests_are_aborted(kind):
    world = World(kind, max_num_seqs=2)
    for number in range(6):
        world.add(f"r{number}", 10, max_tokens=6)
    world.step()
    world.abort("r0")
    world.abort("r4")
    world.abort("r4")
    world.step()
    world.abort("r1")
    world.drain()
    assert world.admitted == ["r0", "r1", "r2", "r3", "r5"]
    assert len(world.queue.local._calls) == 0


@BOTH
def test_a_long_prompt_is_charged_once(kind):
    world = World(kind, max_num_batched_tokens=16)
    ledger = watch(world)
    world.add("long", 100, max_tokens=2, client="c")
    world.drain()
    assert ledger.of("accept") == [("accept", "long", 0)]
    assert ledger.tokens("long") == 2
    assert ledger.left == {"c": 5000 - 100 - 2 * 2}


@BOTH
def test_only_the_uncached_prompt_is_charged(kind):
    world = World(kind)
    ledger = watch(world)
    shared = list(range(100, 140))
    world.add("first", shared)
    world.step()
    world.step()
    world.add("second", [*shared, 1, 2, 3, 4, 5])
    world.drain()
    assert ledger.of("accept") == [("accept", "first", 0), ("accept", "second", 40)]


@BOTH
def test_a_preempted_request_is_resumed_without_another_charge(kind):
    world = World(kind, blocks=17)
    ledger = watch(world)
    world.add("a", 24, max_tokens=20, client="a")
    world.add("b", 24, max_tokens=20, client="b")
    world.drain()
    assert ledger.of("requeue"), "16 blocks do not hold two of eleven"
    for each in "ab":
        assert ledger.tokens(each) == 20
        assert len(world.generated[each]) == 20
    charged = 24 + 2 * 20
    assert ledger.left == {"a": 5000 - charged, "b": 5000 - charged}


@pytest.mark.parametrize(("victim", "expected"), [("fair", "a1"), ("latest", "b")])
def test_the_victim_of_preemption(victim, expected):
    """Client a has two calls in the batch; b's arrived last."""
    world = World(blocks=25, environment={"FAIRSERVE_VICTIM": victim})
    ledger = watch(world)
    world.add("a0", 28, max_tokens=30, client="a")
    world.add("a1", 28, max_tokens=30, client="a")
    world.add("b", 28, max_tokens=30, client="b")
    world.drain()
    assert ledger.of("requeue")[0] == ("requeue", expected)


def test_the_order_of_the_batch_is_unchanged_while_blocks_suffice():
    world = World()
    for number in range(4):
        world.add(f"r{number}", 4 * (4 - number), max_tokens=8, client=f"c{number}")
    for _ in range(5):
        world.step()
        assert world.running() == ["r0", "r1", "r2", "r3"]
    world.drain()
