"""Runs begin where their memory fits, go on at once, and lose their places by rules."""

import pytest

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.residents.residents import LONGEST_LEASE_S
from fairserve.throttling.base import Limits

CAPACITY = 10_000
HOLD_S = 100.0
GATED = SYSTEMS["fairserve"].with_options(
    {"resident_share": 0.5, "hold_s": HOLD_S, "feed_window": 1.0}
)
CALL = AppProfile((StageProfile(2000.0, 0.0, 100.0),), calls_per_interaction=3)
"""Two of its runs fit into half of a worker, a third does not."""


class World:
    """A dispatcher with workers, and the calls that they have."""

    def __init__(self, workers=1, system=GATED):
        self.dispatcher, self.now_s = Dispatcher(system), 0.0
        self.sent, self._number = {}, 0
        self.take(ev.AppChanged("app", CALL, Limits()))
        for number in range(workers):
            self.take(ev.WorkerJoined(f"w{number}", CAPACITY))

    def take(self, event):
        for command in self.dispatcher.handle(event, self.now_s):
            if isinstance(command, ev.Admit):
                self.sent[command.call_id] = command.worker_id

    def call(self, run, tenant="t", prompt=2000):
        """Make a call of a run; return its id."""
        self._number += 1
        call_id = f"{run}-{self._number}"
        keys = [hash((run, block)) & (1 << 60) - 1 for block in range(prompt // 16)]
        self.take(
            ev.CallArrived(
                Call(call_id, tenant, "app", "u", run, "m", prompt, 0, 100, block_keys=keys)
            )
        )
        return call_id

    def end(self, call_id, prompt=2000):
        self.take(ev.CallStarted(call_id))
        self.take(ev.CallEnded(call_id, "completed", TokenUsage(prompt, 0, 0, 100)))

    def serve(self, run, **more):
        """Make a call of a run that begins at once, and end it."""
        call_id = self.call(run, **more)
        assert call_id in self.sent
        self.end(call_id)

    def tick(self, seconds):
        self.now_s += seconds
        self.take(ev.Tick())

    def close(self, run):
        self.take(ev.InteractionClosed(run))


def test_a_run_is_held_until_another_ends():
    world = World()
    for run in "AB":
        world.serve(run)
    held = world.call("C")
    assert held not in world.sent
    world.close("A")
    assert held in world.sent


def test_a_run_in_progress_goes_on_while_others_are_held():
    """Also the run of a client that is farther ahead than those who are held."""
    world = World()
    for run in "AB":
        world.serve(run, tenant="ahead")
    world.call("C", tenant="behind")
    assert world.call("A", tenant="ahead") in world.sent


def test_held_runs_begin_in_the_fair_order():
    """The service of a client's other runs counts, not the order of arrival."""
    world = World()
    world.serve("A", tenant="ahead")
    world.serve("B", tenant="other")
    first, second = world.call("C", tenant="ahead"), world.call("D", tenant="behind")
    world.serve("A", tenant="ahead")
    world.close("B")
    assert second in world.sent
    assert first not in world.sent
    world.close("A")
    assert first in world.sent


def test_a_run_begins_at_the_worker_with_room():
    world = World(workers=2)
    places = [world.sent[world.call(run)] for run in "ABCD"]
    assert sorted(places) == ["w0", "w0", "w1", "w1"]
    assert world.call("E") not in world.sent


def test_a_run_larger_than_the_share_begins_at_a_worker_without_others():
    world = World()
    world.serve("A")
    large = world.call("L", prompt=6000)
    assert large not in world.sent
    world.close("A")
    assert large in world.sent


def test_a_run_that_overran_its_lease_makes_room():
    world = World()
    for run in "AB":
        world.serve(run)
    world.tick(LONGEST_LEASE_S)
    held = world.call("C")
    world.tick(0.5)
    assert held in world.sent, "nobody knows the app's pauses, and the longest lease is over"
    assert world.call("A") not in world.sent, "it waits in the fair order again"


def test_leases_follow_the_pauses_of_the_app():
    world = World()
    for run in "AB":
        world.serve(run)
    world.now_s = 2.0
    world.serve("A")
    world.serve("B")
    held = world.call("C")
    world.tick(3.9)
    assert held not in world.sent
    world.tick(0.2)
    assert held in world.sent, "twice the pause of two seconds"


def test_leases_are_kept_while_nobody_is_held():
    world = World()
    for run in "AB":
        world.serve(run)
    for _ in range(4):
        world.tick(60.0)
    assert world.call("A") in world.sent
    assert len(world.dispatcher.first.gate.residents) == 2


def test_who_is_ahead_loses_a_place_to_who_is_held_for_long():
    """Between two calls: the running one ends in peace, the next one waits in the fair order."""
    world = World()
    for run in "AB":
        world.serve(run, tenant="ahead")
    running = [world.call(run, tenant="ahead") for run in "AB"]
    held = world.call("C", tenant="behind")
    world.tick(1.0)
    world.tick(HOLD_S - 1)
    assert held not in world.sent
    world.tick(1.0)
    assert held in world.sent
    for call_id in running:
        world.end(call_id)
    after = [world.call(run, tenant="ahead") in world.sent for run in "AB"]
    assert sorted(after) == [False, True]


def test_nobody_loses_a_place_to_who_is_farther_ahead():
    world = World()
    for run in "ABCD":
        world.serve(run, tenant="ahead")
        world.close(run) if run in "AB" else None
    world.close("C")
    world.close("D")
    for run in "EF":
        world.serve(run, tenant="behind")
        world.call(run, tenant="behind")
    held = world.call("G", tenant="ahead")
    for _ in range(5):
        world.tick(HOLD_S)
    assert held not in world.sent


def test_runs_of_a_lost_worker_go_on_at_another():
    world = World(workers=2)
    for run in "ABCD":
        world.serve(run)
    world.take(ev.WorkerLost("w1"))
    residents = dict(world.dispatcher.first.gate.residents.all())
    assert len(residents) == 2
    gone = next(run for run in "ABCD" if run not in residents)
    assert world.call(gone) in world.sent


def test_a_cancelled_call_holds_no_place():
    world = World()
    for run in "AB":
        world.serve(run)
    held = world.call("C")
    world.take(ev.CancelRequested(held))
    world.close("A")
    assert world.call("D") in world.sent


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"resident_share": 0}, "resident_share is 0; allowed: over 0, to 1, or null"),
        ({"resident_share": 1.5}, "resident_share is 1.5; allowed: over 0, to 1, or null"),
        ({"hold_s": 0}, "hold_s is 0; allowed: over 0"),
    ],
)
def test_options_out_of_range_are_rejected(options, error):
    with pytest.raises(ValueError, match=error):
        GATED.with_options(options)


def test_only_wsc_has_a_gate():
    with pytest.raises(ValueError, match="resident_share needs the feeder wsc"):
        Dispatcher(SYSTEMS["fcfs"].with_options({"resident_share": 0.5}))
