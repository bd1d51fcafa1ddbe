"""Service at workers that no other waiting client can use is neither a debt nor a credit."""

import pytest
from virtual_cluster import make_call

from fairserve.interactions.call import Restriction, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.locality.locality import Locality
from fairserve.throttling.base import Limits

GPU, NPU = frozenset({"gpu"}), frozenset({"npu"})
LEVELS = [("{}",), ("t", "{}"), ("{}", "u")]


class Kinds:
    """A queue in front of workers of two kinds. Every call has the expected size."""

    def __init__(self, levels):
        directory = Directory()
        directory.take(AppChanged("app", AppProfile((StageProfile(50, 0, 50),)), Limits()))
        self.feeder = WscFeeder(directory, Locality(1, 16), WscOptions(locality_slack=0.0))
        self.levels, self.number, self.waiting = levels, 0, {}

    def fill(self, who, kinds, calls=2, run=None):
        """Make calls of a client wait that only these kinds of workers can take."""
        while self.waiting.get((who, kinds), 0) < calls:
            self.number += 1
            call = make_call(f"{who}{self.number}", user=who, tokens=range(50), output=50)
            call.client = tuple(name.format(who) for name in self.levels)
            call.kinds, call.expected_output_tokens = kinds, 50
            call.interaction_id = run or call.interaction_id
            self.feeder.add(call)
            self.waiting[who, kinds] = self.waiting.get((who, kinds), 0) + 1

    def serve(self, kinds):
        """Give a worker of this kind its next call, and return whose it is."""
        others = {Restriction(each) for _, each in self.waiting if each and each != kinds}
        call = self.feeder.peek(("w",), others)
        self.waiting[call.user, call.kinds] -= 1
        self.feeder.dispatch(call.call_id, 0)
        self.feeder.finish(call.call_id, TokenUsage(50, 0, 0, 50))
        return call.user


@pytest.mark.parametrize("levels", LEVELS)
def test_workers_that_nobody_else_can_use_cost_nothing(levels):
    """a has the GPUs for itself while c waits for NPUs; then both wait for NPUs."""
    queue = Kinds(levels)
    for turn in range(500):
        queue.fill("a", GPU)
        queue.fill("c", NPU)
        assert queue.serve(GPU) == "a"
        if turn % 10 == 0:
            assert queue.serve(NPU) == "c"
    got = []
    for _ in range(100):
        queue.fill("a", NPU)
        queue.fill("c", NPU)
        got.append(queue.serve(NPU))
    assert got.count("a") == pytest.approx(50, abs=3)


@pytest.mark.parametrize("levels", LEVELS)
def test_workers_that_nobody_else_can_use_give_no_credit(levels):
    """c and d compete for NPUs while a has the GPUs for itself; then a is one of three."""
    queue = Kinds(levels)
    for _ in range(300):
        queue.fill("a", GPU)
        queue.fill("c", NPU)
        queue.fill("d", NPU)
        assert queue.serve(GPU) == "a"
        queue.serve(NPU)
    got = []
    for _ in range(90):
        for who in "acd":
            queue.fill(who, NPU)
        got.append(queue.serve(NPU))
    assert got.count("a") == pytest.approx(30, abs=3)


@pytest.mark.parametrize("levels", LEVELS)
def test_a_call_that_any_worker_can_take_makes_them_contended(levels):
    """a and c share the GPUs as before, also while a restricted call of d waits."""
    queue = Kinds(levels)
    queue.fill("d", NPU)
    got = []
    for _ in range(60):
        queue.fill("a", GPU)
        queue.fill("c", frozenset())
        got.append(queue.serve(GPU))
    assert got.count("a") == pytest.approx(30, abs=2)


@pytest.mark.parametrize("levels", LEVELS)
def test_workers_that_nobody_else_can_use_take_no_turn_from_a_client_beside_a_run_in_progress(
    levels,
):
    """While c's run is in progress, a begins runs on NPUs and has the GPUs for itself."""
    queue = Kinds(levels)
    got = []
    for _ in range(200):
        queue.fill("a", GPU)
        queue.fill("a", NPU)
        queue.fill("c", NPU, run="c's")
        assert queue.serve(GPU) == "a"
        got.append(queue.serve(NPU))
    assert got.count("a") == pytest.approx(100, abs=3)
