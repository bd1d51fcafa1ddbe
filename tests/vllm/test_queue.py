"""Test vLLM's use of its queue of waiting requests, step by step."""

from concurrent.futures import Future

import pytest
from vllm_world import BLOCK, BOTH, Request, RequestStatus, World, watch


@BOTH
def test_one_call_runs_from_arrival_to_end(kind):
    world = World(kind)
    ledger = watch(world)
    world.add("r", 10, max_tokens=3)
    assert (len(world.queue), bool(world.queue), world.waiting()) == (1, True, ["r"])
    world.drain()
    assert ledger.events == [
        ("accept", "r", 0),
        *[("decoded", "r", 1)] * 3,
        ("finish", "r"),
    ]
    assert len(world.generated["r"]) == 3


@BOTH
def test_a_flood_does_not_delay_a_light_client(kind):
    world = World(kind, max_num_seqs=4, environment={"FAIRSERVE_SCHEDULER_OPTIONS": "quantum=40"})
    for number in range(40):
        world.add(f"flood{number}", 30, client="flood")
    for _ in range(6):
        world.step()
    world.add("light", 30, client="light")
    at = len(world.admitted)
    world.drain()
    assert "light" in world.admitted[at : at + 3], "after what was left of one quantum"


def test_the_offered_request_is_kept_until_it_is_popped():
    """An allocation stores blocks, which may change the order; vLLM pops the request that it peeked."""
    world = World()
    queue = world.queue
    world.add("a", 8)
    world.add("b", 8)
    with pytest.raises(IndexError):
        World().queue.peek_request()
    assert queue.peek_request().request_id == "a"
    queue.begin_step()
    assert queue
    offered = queue.peek_request()
    world.add("c", 4)
    assert all(queue.peek_request() is offered for _ in range(3))
    assert bool(queue)
    assert queue.pop_request() is offered
    assert world.waiting() == ["b", "c"]
    queue.add_request(offered)
    queue.end_step()
    assert sorted(world.waiting()) == ["a", "b", "c"]
    world.drain()


def test_the_queue_is_empty_for_a_step_when_nothing_is_offered():
    world = World(max_num_seqs=1)
    queue = world.queue
    world.add("a", 8)
    world.add("b", 8)
    assert world.step() == ["a"]
    queue.begin_step()
    assert not queue, "the batch is full"
    assert (len(queue), world.waiting()) == (1, ["b"])
    queue.end_step()
    assert queue
    world.drain()


@BOTH
def test_requests_that_do_not_fit_are_bypassed(kind):
    world = World(kind, blocks=33)
    ledger = watch(world)
    world.add("runs", 40, max_tokens=30)
    world.step()
    world.add("big", 100)
    world.add("small", 8)
    entered = world.step()
    assert entered == ["small"]
    assert ledger.of("skip") == [("skip", "big")]
    assert "big" in world.waiting()
    world.drain()
    assert world.admitted == ["runs", "small", "big"]


def test_a_watermark_is_kept_free():
    """By vLLM's own rule it applies to admissions while anything runs. Others are not delayed."""
    world = World(blocks=33, watermark=0.25)
    world.add("runs", 40, max_tokens=30)
    world.step()
    world.add("a", 60)
    world.add("small", 8, max_tokens=1)
    assert world.step() == ["small"]
    world.abort("runs")
    assert world.step() == ["a"]
    world.drain()


def test_no_walk_is_repeated_while_nothing_fits():
    world = World(blocks=33)
    ledger = watch(world)
    world.add("runs", 100, max_tokens=20)
    world.step()
    world.step()
    for number in range(5):
        world.add(f"big{number}", 80)
    for _ in range(10):
        world.step()
    assert len(ledger.of("skip")) == 5, "one walk"
    world.add("small", 4)
    assert world.step() == ["small"]
    world.drain()
    assert len(world.admitted) == 7


@pytest.mark.parametrize("another_waits", [False, True])
def test_a_stored_block_ends_the_wait(another_waits):
    """The next turn of an agent waits for an output block that the previous turn has yet to fill."""
    world = World(blocks=33)
    shared = list(range(5000, 5040))
    world.add("x", shared, max_tokens=30)
    world.step()
    if another_waits:  # then the scheduler knows that nothing fits when the next turn arrives
        world.add("z", 120, max_tokens=1)
    world.step()
    world.add("y", [*shared, *[8] * 4, *range(6000, 6084)], max_tokens=1)
    entered = [world.step() for _ in range(3)]
    assert entered == [[], [], ["y"]], "32 blocks, and 11 of them are shared now, not 10"
    world.drain()


def test_blocks_stored_by_one_request_let_the_next_fit_in_the_same_step():
    """vLLM stores the blocks of a prompt when it allocates them."""
    world = World(blocks=33)
    world.add("runs", 68, max_tokens=30)
    world.step()
    world.step()
    shared = list(range(5000, 5040))
    world.add("first", shared, max_tokens=1)
    world.add("second", [*shared, *range(6000, 6008)], max_tokens=1)
    assert world.pool.get_num_free_blocks() == 15, "1 for an output, 10 for the first, then 2"
    assert world.step() == ["first", "second"]
    world.drain()


@BOTH
def test_the_prefix_cache_can_be_reset(kind):
    world = World(kind)
    ledger = watch(world)
    shared = list(range(100, 140))
    world.add("first", shared, max_tokens=2)
    world.drain()
    world.add("second", [*shared, 1], max_tokens=9)
    world.add("third", [*shared, 2], max_tokens=9)
    world.queue.begin_step()
    assert world.queue
    world.queue.end_step()
    assert world.scheduler.reset_prefix_cache()
    world.step()
    assert ledger.of("accept", "second") == [("accept", "second", 0)]
    world.step()
    assert world.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert world.running() == []
    assert len(world.queue) == 2
    world.drain()
    assert len(world.generated["second"]) >= 9
    assert ledger.tokens("second") == len(world.generated["second"])


def test_a_request_waits_for_its_grammar():
    """Such a request is not offered, counts as waiting, and delays no other."""

    class Compiling:
        """A future-based grammar like vLLM's own."""

        def __init__(self):
            self.future = Future()

        @property
        def grammar(self):
            return self.future.result() if self.future.done() else None

    world = World(max_num_seqs=2)
    ledger = watch(world)
    request = world.request("json", range(10), 3)
    request.structured_output_request = Compiling()
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    world.requests["json"] = request
    world.scheduler.add_request(request)
    world.add("plain", 10, max_tokens=3)
    assert world.step() == ["plain"]
    assert (len(world.queue), world.waiting()) == (1, ["json"])
    assert not ledger.of("skip")
    broken = world.request("broken", range(10), 3)
    broken.structured_output_request = Compiling()
    broken.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    world.requests["broken"] = broken
    world.scheduler.add_request(broken)
    for _ in range(70):
        world.add(f"p{len(world.requests)}", 8, max_tokens=1)
        world.step()
    broken.structured_output_request.future.set_result(ValueError("no grammar"))
    world.step()
    world.ended.add("broken")
    assert "broken" not in world.scheduler.requests, "vLLM answers it with its error"
    request.structured_output_request.future.set_result(object())
    world.scheduler.structured_output_manager.accept_tokens = lambda *_: True
    world.scheduler.get_grammar_bitmask = lambda *_: None
    world.drain()
    assert "json" in world.admitted


def test_a_request_waiting_for_a_grammar_can_be_aborted():
    world = World()
    request = world.request("json", range(10), 3)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    world.requests["json"] = request
    world.scheduler.add_request(request)
    world.step()
    world.abort("json")
    world.drain()


def test_a_request_may_stream_its_input():
    """It holds its blocks between its inputs, in a queue of vLLM's own."""
    world = World()
    ledger = watch(world)
    world.add("s", 10, max_tokens=2, resumable=True)
    for _ in range(4):
        world.step()
    request = world.requests["s"]
    assert request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
    assert len(world.scheduler.kv_holding_waiting) == 1
    world.add("other", 10)
    world.step()
    more = world.request("s", range(50, 60), 3, resumable=True)
    world.scheduler.add_request(more)
    for _ in range(6):
        world.step()
    assert ledger.of("accept", "s") == [("accept", "s", 0)]
    assert ledger.tokens("s") == 2 + 3
    world.scheduler.finish_requests("s", RequestStatus.FINISHED_ABORTED)
    world.drain()


def test_pausing_keeps_waiting_requests():
    from vllm.v1.core.sched.interface import PauseState

    world = World(max_num_seqs=1)
    world.add("a", 8, max_tokens=6)
    world.add("b", 8)
    world.step()
    for state in (PauseState.PAUSED_NEW, PauseState.PAUSED_ALL):
        world.scheduler.set_pause_state(state)
        for _ in range(10):
            world.step()
        assert "b" in world.waiting()
    world.scheduler.set_pause_state(PauseState.UNPAUSED)
    world.drain()
    assert world.admitted == ["a", "b"]


def test_a_request_bypassed_by_vllm_is_offered_again():
    """The reason does not matter: here, a step rejects it twice."""
    world = World()
    ledger = watch(world)
    ready, refusals = world.scheduler._handle_blocked_waiting_request, ["a", "a"]

    def reject(request):
        if request.request_id in refusals:
            refusals.remove(request.request_id)
            return False
        return ready(request)

    world.scheduler._handle_blocked_waiting_request = reject
    world.add("a", 8)
    world.add("b", 8)
    assert world.step() == ["b"]
    assert world.waiting() == ["a"]
    assert world.step() == []
    assert world.step() == ["a"]
    assert ledger.of("skip") == [("skip", "a")] * 2
    world.drain()


def test_an_unexpected_allocation_failure_ends_the_pass():
    world = World()
    ledger = watch(world)
    world.add("a", 8)
    world.add("b", 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.scheduler.kv_cache_manager, "allocate_slots", lambda *_, **__: None)
        assert world.step() == []
    assert ledger.events == [("skip", "a")]
    assert world.step() == ["a", "b"]
    world.drain()


def test_requests_may_skip_the_prefix_cache_lookup():
    world = World()
    shared = list(range(100, 140))
    world.add("first", shared)
    world.step()
    request = world.request("second", shared, 4)
    request.skip_reading_prefix_cache = True
    world.requests["second"] = request
    ledger = watch(world)
    world.scheduler.add_request(request)
    world.drain()
    assert ledger.of("accept") == [("accept", "second", 0)]


def test_salts_separate_prefixes():
    world = World()
    ledger = watch(world)
    shared = list(range(100, 140))
    world.add("first", shared, salt="one")
    world.step()
    world.add("second", [*shared, 1], salt="two")
    world.add("third", [*shared, 1], salt="one")
    world.drain()
    assert [event[1:] for event in ledger.of("accept")] == [
        ("first", 0),
        ("third", 40),
        ("second", 0),
    ]


def test_statistics_count_waiting_requests():
    world = World(max_num_seqs=1)
    for number in range(3):
        world.add(f"r{number}", 8)
    world.step()
    stats = world.scheduler.make_stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (1, 2)
    assert world.scheduler.get_request_counts() == (1, 2)
    world.drain()


def test_blocks_equal_those_of_vllm():
    world = World()
    request = world.add("r", 10)
    assert isinstance(request, Request)
    assert len(request.block_hashes) == 10 // BLOCK
    world.drain()
