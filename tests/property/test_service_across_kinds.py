"""Service at workers that no other waiting client can use is neither a debt nor a credit.

Each test runs with the feeder of every system that keeps accounts of clients, or turns.
"""

import pytest
from virtual_cluster import make_call

from fairserve.interactions.call import Restriction, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.events import AppChanged
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.registry import FEEDERS, SYSTEMS
from fairserve.throttling.base import Limits

GPU, NPU = frozenset({"gpu"}), frozenset({"npu"})
LEVELS = [("{}",), ("t", "{}"), ("{}", "u")]
FEW = {"central-dlpm": {"quantum": 150.0}, "fairserve": {"locality_slack": 0.0}}
"""Options under which few calls show the shares."""
SYSTEM_NAMES = ["fairserve", "fs-w", "fs-wi", "central-dlpm"]


def everywhere(*, but=""):
    """Return a mark that runs a test with each system except one, and each kind of levels."""
    cases = [(name, levels) for name in SYSTEM_NAMES if name != but for levels in LEVELS]
    names = [f"{system} {'/'.join(levels)}" for system, levels in cases]
    return pytest.mark.parametrize(("system", "levels"), cases, ids=names)


class Kinds:
    """A queue in front of workers of two kinds, which run up to ``RUNNING`` calls at a time each.

    Every call has the expected size.
    """

    RUNNING = 2

    def __init__(self, levels, system="fairserve"):
        directory = Directory()
        directory.take(AppChanged("app", AppProfile((StageProfile(50, 0, 50),)), Limits()))
        options = {**SYSTEMS[system].feeder_options, **FEW.get(system, {})}
        self.feeder = FEEDERS[SYSTEMS[system].feeder](directory, Locality(1, 16), **options)
        self.levels, self.number, self.waiting = levels, 0, {}
        self.running = {GPU: [], NPU: []}

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
        running = self.running[kinds]
        if len(running) == self.RUNNING:
            self.feeder.finish(running.pop(0), TokenUsage(50, 0, 0, 50))
        others = {Restriction(each) for _, each in self.waiting if each and each != kinds}
        call = self.feeder.peek(("w",), others)
        self.waiting[call.user, call.kinds] -= 1
        self.feeder.dispatch(call.call_id, 0)
        running.append(call.call_id)
        return call.user


@everywhere()
def test_workers_that_nobody_else_can_use_cost_nothing(system, levels):
    """a has the GPUs for itself while c waits for NPUs; then both wait for NPUs."""
    queue = Kinds(levels, system)
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


@everywhere()
def test_workers_that_nobody_else_can_use_give_no_credit(system, levels):
    """c and d compete for NPUs while a has the GPUs for itself; then a is one of three."""
    queue = Kinds(levels, system)
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


@everywhere()
def test_a_call_that_any_worker_can_take_makes_them_contended(system, levels):
    """a and c share the GPUs as before, also while a restricted call of d waits."""
    queue = Kinds(levels, system)
    queue.fill("d", NPU)
    got = []
    for _ in range(60):
        queue.fill("a", GPU)
        queue.fill("c", frozenset())
        got.append(queue.serve(GPU))
    assert got.count("a") == pytest.approx(30, abs=2)


@everywhere(but="fs-wi")  # as in its paper, c's run in progress comes before all runs that begin
def test_workers_that_nobody_else_can_use_take_no_turn_from_a_client_beside_a_run_in_progress(
    system, levels
):
    """While c's run is in progress, a begins runs on NPUs and has the GPUs for itself."""
    queue = Kinds(levels, system)
    got = []
    for _ in range(200):
        queue.fill("a", GPU)
        queue.fill("a", NPU)
        queue.fill("c", NPU, run="c's")
        assert queue.serve(GPU) == "a"
        got.append(queue.serve(NPU))
    assert got.count("a") == pytest.approx(100, abs=3)
