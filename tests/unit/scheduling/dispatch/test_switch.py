"""A change of the system keeps every queued and running call; an invalid one changes nothing."""

import pytest
from virtual_cluster import make_call

from fairserve.interactions.call import TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.switch import switch_system
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

USED = TokenUsage(50, 0, 0, 400)


class Switched:
    """A dispatcher with one small worker, and its calls as the switch needs them."""

    def __init__(self, system="fairserve"):
        self.dispatcher = Dispatcher(SYSTEMS[system], seed=3)
        self.dispatcher.handle(ev.WorkerJoined("w0", 150), 0.0)
        self.calls, self.admitted = {}, []

    def arrive(self, name, user="u"):
        self.calls[name] = make_call(name, user=user)
        self.take(ev.CallArrived(self.calls[name]))

    def take(self, event):
        commands = self.dispatcher.handle(event, 0.0)
        self.admitted += [each.call_id for each in commands if isinstance(each, ev.Admit)]

    def switch(self, system, **options):
        calls = [
            (call, "w0", USED) if name in self.admitted else (call, None, TokenUsage())
            for name, call in self.calls.items()
        ]
        config = SYSTEMS[system].with_options(options)
        switch_system(self.dispatcher, config, calls, 3, 0.0)

    def end(self, name):
        del self.calls[name]
        self.take(ev.CallEnded(name, "completed", USED))


def until_full(switched):
    number = 0
    while len(switched.admitted) == number:
        switched.arrive(f"c{number}")
        number += 1
    switched.arrive("last", user="v")
    assert switched.dispatcher.queued("") == 2
    return number + 1


@pytest.mark.parametrize("before", ["fairserve", "central-dlpm"])
@pytest.mark.parametrize("after", ["fairserve", "fcfs", "preble", "vtc", "d2lpm"])
def test_every_call_is_admitted_once_and_ends(before, after):
    switched = Switched(before)
    calls = until_full(switched)
    switched.switch(after)
    assert switched.dispatcher.system.name == after
    assert switched.dispatcher.queued("") == 2
    while switched.calls:
        running = [name for name in switched.calls if name in switched.admitted]
        assert running, "nothing stalls"
        switched.end(running[0])
    assert len(switched.admitted) == len(set(switched.admitted)) == calls


@pytest.mark.parametrize(("before", "after"), [(None, 0.5), (0.5, None), (0.5, 0.9)])
def test_residents_begin_and_end_with_the_option(before, after):
    switched = Switched()
    switched.switch("fairserve", resident_share=before)
    for number in range(6):
        switched.arrive(f"c{number}", user=f"u{number % 2}")
    switched.switch("fairserve", resident_share=after)
    while switched.calls:
        running = [name for name in switched.calls if name in switched.admitted]
        assert running, "nothing stalls"
        switched.end(running[0])
        switched.take(ev.Tick())
    assert len(switched.admitted) == len(set(switched.admitted)) == 6
    gate = switched.dispatcher.first.gate
    assert (gate is None) == (after is None)
    assert gate is None or gate._pace.running == 0


def test_a_new_feeder_charges_the_usage_of_running_calls():
    switched = Switched("fcfs")
    switched.arrive("c0", user="heavy")
    switched.switch("fairserve")
    assert switched.dispatcher.first.feeder.counter(switched.calls["c0"].client) > 0


def test_a_feeder_with_the_same_options_keeps_its_counters():
    switched = Switched("fairserve")
    switched.arrive("c0")
    switched.take(ev.TokensDecoded((("c0", 40),)))
    counter = switched.dispatcher.first.feeder.counter(("t", "u"))
    switched.switch("fairserve", immunity_factor=2.0)
    assert switched.dispatcher.first.feeder.counter(("t", "u")) == pytest.approx(counter)


def test_a_new_router_counts_no_call_of_a_worker_that_has_left_and_returned():
    """It would never be released there, so that the worker would get fewer calls than others."""
    switched = Switched("fcfs")
    switched.arrive("c0")
    switched.take(ev.WorkerLost("w0"))
    switched.take(ev.WorkerJoined("w0", 150))
    switched.switch("cache-aware")
    switched.end("c0")
    assert switched.dispatcher.first.router._loads.calls == {"w0": 0}


def test_a_new_feeder_returns_the_trust_of_running_calls():
    switched = Switched()
    declared = AppProfile((StageProfile(1e6, 0, 1e5),), believed_tokens=1e6)
    switched.take(ev.AppChanged("app", declared, Limits()))
    switched.arrive("c0")
    trust = switched.dispatcher.directory.trust
    assert trust._tenants["t"].taken == 1.0
    switched.switch("fcfs")
    switched.end("c0")
    assert trust._tenants["t"].taken == 0.0
    assert not trust._dispatched


def test_an_invalid_option_changes_nothing():
    switched = Switched()
    until_full(switched)
    before = switched.dispatcher.snapshot(0.0)
    for options in ({"feeder.nonsense": 1}, {"router.nonsense": 1}):
        with pytest.raises(ValueError, match="nonsense"):
            switched.switch("fairserve", **options)
    assert switched.dispatcher.snapshot(0.0) == before
