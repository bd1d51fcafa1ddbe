"""A served call and a tick cost the same with long queues and many tenants as with few."""

from functools import partial

import pytest
from counted_lines import lines_of
from virtual_cluster import make_call

from fairserve.benchmarks.bench.long_queues import KINDS, QueueOfKind, Ticks
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.fairness import counters
from fairserve.scheduling.locality import waiting_index
from fairserve.scheduling.registry import SYSTEMS


@pytest.mark.parametrize("kind", KINDS)
def test_a_served_call_does_as_much_with_a_long_queue_as_with_a_short_one(kind, monkeypatch):
    """A scan would do eight times as much; heaps grow by a few steps."""
    monkeypatch.setattr(waiting_index, "MOST_WALKS", 16)  # a bound that both queues reach
    lines = {}
    for queued in (60, 480):
        queue = QueueOfKind(kind, queued)
        queue.us_per_call(8)  # what the workers have admitted before is served first
        lines[queued] = lines_of(partial(queue.us_per_call, 8))
    assert lines[480] < 1.5 * lines[60]


def test_a_tick_visits_a_share_of_the_tenants():
    lines = {}
    for tenants in (300, 1500):
        ticks = Ticks("figure", tenants=tenants, ticks=1, callers=3)
        ticks.round()
        lines[tenants] = lines_of(ticks.round)
    assert lines[1500] < 1.5 * lines[300]


def test_gone_users_leave_the_counters_of_idle_models(monkeypatch):
    """Each user makes one contended call at one model, which counts at the other, idle one."""
    monkeypatch.setattr(counters, "_SWEEP_MIN", 16)
    dispatcher = Dispatcher(SYSTEMS["fairserve"])
    admitted = []

    def handle(event):
        commands = dispatcher.handle(event, 0.0)
        admitted.extend(each.call_id for each in commands if isinstance(each, ev.Admit))

    for model in ("busy", "idle"):
        handle(ev.WorkerJoined(f"worker of {model}", 2000, model=model))
    for number in range(400):
        owner = {"tenant": "tv"[number % 2], "user": f"u{number}"}
        handle(ev.CallArrived(make_call(f"c{number}", pool="busy", **owner)))
        if number >= 20:
            call_id = admitted.pop(0)
            handle(ev.CallStarted(call_id, 0))
            handle(ev.CallEnded(call_id, "completed", TokenUsage(32, 0, 0, 8)))
    idle = dispatcher.pools["idle"].feeder
    known = sum(idle.counter(("tv"[number % 2], f"u{number}")) > 0 for number in range(400))
    assert 0 < known <= 50


class WaitingBackground:
    """Background calls of different sizes that wait for one that runs."""

    def __init__(self, number):
        self.dispatcher = Dispatcher(SYSTEMS["fairserve"])
        self.handle(ev.WorkerJoined("w0", 100_000, slots=256))
        self.arrive("running", samples=100)
        self.handle(ev.CallStarted("running", 0))
        for each in range(number):
            self.arrive(f"b{each}", samples=29 + each % 100, output=8 * (1 + each // 100))

    def handle(self, event):
        return self.dispatcher.handle(event, 0.0)

    def arrive(self, name, **more):
        return self.handle(ev.CallArrived(make_call(name, background=True, **more)))

    def other_call(self):
        self.handle(ev.CallArrived(make_call("other", user="v")))
        self.handle(ev.CallStarted("other", 0))
        self.handle(ev.TokensDecoded((("other", 3),)))
        self.handle(ev.CallEnded("other", "completed", TokenUsage(32, 0, 0, 8)))


def test_waiting_background_calls_cost_other_calls_nothing():
    """A client chooses how many sizes of them wait, and each has a place of its own in the order."""
    lines, arrivals = {}, {}
    for number in (10, 300):
        waiting = WaitingBackground(number)
        assert waiting.dispatcher.queued("", background=True) == number
        lines[number] = lines_of(waiting.other_call)
        arrivals[number] = lines_of(partial(waiting.arrive, "new"))
    assert lines[300] < 1.2 * lines[10]
    assert arrivals[300] < 1.2 * arrivals[10]


def test_a_background_call_takes_the_room_of_another_call_at_the_next_tick():
    waiting = WaitingBackground(0)
    waiting.handle(ev.CallArrived(make_call("other", user="v")))
    assert waiting.arrive("next") == [], "a call waits at the worker"
    assert waiting.handle(ev.CallStarted("other", 0)) == []
    (command,) = waiting.handle(ev.Tick())
    assert command.call_id == "next"
