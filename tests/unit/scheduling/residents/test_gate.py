"""Runs begin where their memory fits, go on at once, and lose their places by rules."""

from dataclasses import replace

import pytest

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile, StageProfile
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.residents import gate
from fairserve.scheduling.residents.residents import LONGEST_LEASE_S, SHORTEST_LEASE_S
from fairserve.throttling.base import Limits

CAPACITY = 10_000
HOLD_S = 100.0
GATED = SYSTEMS["fairserve"].with_options(
    {"resident_share": 0.5, "hold_s": HOLD_S, "feed_window": 1.0}
)
CALL = AppProfile((StageProfile(2000.0, 0.0, 100.0),), calls_per_interaction=3)
"""Two of its runs fit into half of a worker, a third does not."""
SMALL = AppProfile((StageProfile(300.0, 0.0, 100.0),), calls_per_interaction=5)
"""One of its runs fits beside those two."""
PROFILES = {
    "app": CALL,
    "small": SMALL,
    "one": replace(CALL, calls_per_interaction=1),
    "long": replace(CALL, calls_per_interaction=20),
}


@pytest.fixture(autouse=True)
def idle_after(monkeypatch):
    """Workers without a call give no room here before this is called, with seconds."""

    def after(seconds):
        monkeypatch.setattr(gate, "IDLE_AFTER_S", seconds)

    after(float("inf"))
    return after


class World:
    """A dispatcher with workers, and the calls that they have."""

    def __init__(self, workers=1, system=GATED):
        self.dispatcher, self.now_s = Dispatcher(system), 0.0
        self.sent, self.rejected, self._number = {}, {}, 0
        for app, profile in PROFILES.items():
            self.take(ev.AppChanged(app, profile, Limits()))
        for number in range(workers):
            self.take(ev.WorkerJoined(f"w{number}", CAPACITY))

    def take(self, event):
        for command in self.dispatcher.handle(event, self.now_s):
            if isinstance(command, ev.Admit):
                self.sent[command.call_id] = command.worker_id
            elif isinstance(command, ev.Refuse):
                self.rejected[command.call_id] = command.context.immune

    def call(self, run, tenant="t", prompt=2000, app="app", text=None, shared=0, user="u", **more):
        """Make a call of a run; return its id. Equal texts share a prompt, all their first tokens."""
        self._number += 1
        call_id = f"{run}-{self._number}"
        depths = [
            ("" if 16 * block < shared else text or run, block) for block in range(prompt // 16)
        ]
        keys = [hash(depth) & (1 << 60) - 1 for depth in depths]
        call = Call(call_id, tenant, app, user, run, "m", prompt, 0, 100, block_keys=keys, **more)
        self.take(ev.CallArrived(call))
        return call_id

    def small(self, run, prompt=300, **more):
        """Make a call of a small run of another tenant; return its id."""
        return self.call(run, "small", prompt, "small", **more)

    def end(self, call_id, prompt=2000):
        self.take(ev.CallStarted(call_id))
        self.take(ev.CallEnded(call_id, "completed", TokenUsage(prompt, 0, 0, 100)))

    def serve(self, *runs, **more):
        """Make a call of each run, one by one, that begins at once, and end it."""
        for run in runs:
            call_id = self.call(run, **more)
            assert call_id in self.sent
            self.end(call_id)

    def serve_until_sent(self, held, tenant="ahead", **more):
        """Serve run A until a held call is sent; return the number of its calls."""
        calls = 0
        while held not in self.sent:
            self.serve("A", tenant=tenant, **more)
            self.tick(0.1)
            calls += 1
        return calls

    @property
    def gate(self):
        return self.dispatcher.first.gate

    def tick(self, seconds):
        self.now_s += seconds
        self.take(ev.Tick())

    def close(self, run):
        self.take(ev.InteractionClosed(run))


def test_a_run_is_held_until_another_ends():
    world = World()
    world.serve("A", "B")
    held = world.call("C")
    assert held not in world.sent
    world.close("A")
    assert held in world.sent


def test_a_profile_that_no_call_confirmed_reserves_little():
    """A declared growth beyond what is believed holds no room against others."""
    stages = tuple(StageProfile(tokens, 0.0, 100.0) for tokens in (300.0, 9000.0))
    declared = AppProfile(stages, calls_per_interaction=2, believed_tokens=1000.0, seen_stages=0)
    world = World()
    world.take(ev.AppChanged("small", declared, Limits()))
    world.small("S")
    assert world.gate.residents.held_tokens("w0") == 300 + 50 + 600


def test_memory_without_a_call_costs_service():
    """While a run is held. Two tenants have had the same service; one of them keeps its places idle."""
    world = World()
    counter = world.dispatcher.first.feeder.counter
    for tenant, run in (("idle", "A"), ("busy", "B")):
        call_id = world.call(run, tenant=tenant)
        world.tick(1.0)
        world.end(call_id)
    world.tick(1.0)
    before = counter(("idle", "u"))
    world.tick(5.0)
    assert counter(("idle", "u")) == before, "nobody is held"
    running = world.call("B", tenant="busy")
    world.tick(1.0)
    held = world.call("C", tenant="third")
    for _ in range(5):
        world.tick(1.0)
    assert held not in world.sent
    assert counter(("idle", "u")) > before
    world.end(running)


def test_a_run_that_ended_and_continues_needs_a_place_again():
    world = World()
    world.serve("A")
    world.tick(CALL.idle_timeout_s + 1)
    world.serve("B", "C")
    assert world.call("A") not in world.sent


def test_held_calls_are_counted():
    world = World()
    running = [world.call(run) for run in "AB"]
    for run in "CDE":
        world.call(run)
    world.tick(0.5)
    assert world.gate.held_calls == 3
    for call_id in running:
        world.end(call_id)
    world.close("A")
    world.tick(0.5)
    assert world.gate.held_calls == 2
    world.close("B")
    world.tick(0.5)
    assert world.gate.held_calls == 1


def test_a_run_in_progress_goes_on_while_others_are_held():
    """Also the run of a client that is farther ahead than those who are held."""
    world = World()
    world.serve("A", "B", tenant="ahead")
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


def test_a_prefix_that_runs_share_counts_once():
    world = World()
    world.serve("A", "B", "C", "D", prompt=3500, shared=3440)
    assert world.call("E", prompt=3500) not in world.sent


def test_questions_on_one_document_share_all_of_it():
    """Behind the last depth at which prompts are cut, too, as the first question is in the cache."""
    world, added = World(), []
    residents = world.gate.residents
    for run in "ABC":
        before = residents.held_tokens("w0")
        assert world.small(run, prompt=1400, shared=1296) in world.sent
        added.append(residents.held_tokens("w0") - before)
    growth = added[0] - 1450
    assert added[2] - growth == 1450 - 1296 < added[1] - growth


def test_a_run_with_several_calls_holds_all_their_prompts():
    world = World()
    calls = [world.call("A", text=text) for text in ("plan", "code")]
    assert world.sent.keys() == set(calls)
    held = world.call("B")
    assert held not in world.sent
    world.end(calls[0])
    assert held in world.sent


def test_others_pass_a_held_run_that_they_do_not_delay():
    """They end before it is expected to have room, or fit beside it then."""
    world = World()
    world.serve("A")
    large = world.call("L", prompt=4000)
    assert world.small("S") in world.sent, "it fits beside the large one"
    once = world.call("O", "other", 1000, app="one")
    assert once in world.sent, "it ends before"
    assert world.call("B", "other", 1000) not in world.sent, "it would be there for longer"
    world.close("A")
    assert large not in world.sent
    world.end(once, 1000)
    world.close("O")
    assert large in world.sent


def held_for_long(world, prompt):
    """Hold a run of a tenant, two runs of another go on; return its call once they are ahead."""
    world.serve("A", "B", tenant="ahead")
    held = world.call("L", tenant="behind", prompt=prompt)
    world.tick(1.0)
    world.serve("A", "B", tenant="ahead")
    return held


def test_who_passes_a_held_run_owes_for_it():
    """A run without room wants the worker, too: prompts that take little memory are no free service."""
    world = World()
    world.serve("A", "B")
    held = world.call("C", "third")
    counter = world.dispatcher.first.feeder.counter
    before = counter(("small",)) or 0.0
    for number in range(4):
        passing = world.small(f"S{number}")
        assert passing in world.sent
        world.end(passing, 300)
        world.close(f"S{number}")
        world.tick(0.1)
    assert held not in world.sent
    assert counter(("small",)) - before > 3.5


def test_a_held_run_is_not_passed_for_longer_than_the_limit():
    """Then only by what fits beside it."""
    world = World()
    world.serve("A", "B", tenant="ahead", app="long")
    large = world.call("L", tenant="behind", prompt=4500)
    world.tick(1.0)
    world.serve("A", "B", "A", "B", tenant="ahead", app="long")
    running = [world.call(run, tenant="ahead", app="long") for run in "AB"]
    world.tick(HOLD_S - 1.5)
    once = world.call("S", "other", 300, app="one")
    assert once in world.sent
    world.end(once, 300)
    world.close("S")
    world.tick(1.0)
    assert world.call("T", "other", 700, app="one") not in world.sent
    assert world.small("U") in world.sent
    world.close("U")
    for run, call_id in zip("AB", running, strict=True):
        world.end(call_id)
        world.close(run)
    assert large in world.sent


def test_a_place_is_kept_until_its_client_is_ahead_by_the_allowed_calls(monkeypatch):
    """Between two calls: the running one ends in peace, the next one waits in the fair order."""
    monkeypatch.setattr(gate, "LEAD_CALLS", 8.0)
    world = World()
    world.serve("A", "B", tenant="ahead", app="long")
    held = world.call("C", tenant="behind")
    counter = world.dispatcher.first.feeder.counter
    while held not in world.sent:
        lead = counter(("ahead",)) - counter(("behind",))
        assert lead <= 8.0
        running = [world.call(run, tenant="ahead", app="long") for run in "AB"]
        world.tick(0.1)
        for call_id in running:
            world.end(call_id)
    assert lead > 6.0
    after = [world.call(run, tenant="ahead", app="long") in world.sent for run in "AB"]
    assert sorted(after) == [False, True]


def test_no_place_is_lost_that_would_not_be_enough(monkeypatch):
    monkeypatch.setattr(gate, "LEAD_CALLS", 4.0)
    world = World()
    world.serve("A", tenant="ahead", app="long")
    world.serve("B", tenant="even", app="long")
    large = world.call("L", tenant="behind", prompt=4500)
    for _ in range(8):
        world.serve("A", tenant="ahead", app="long")
        world.tick(0.1)
    assert {"A", "B"} <= {each.run_id for each in world.gate.residents.all()}
    assert large not in world.sent


@pytest.mark.parametrize("workers", [1, 2])
def test_the_allowed_calls_are_those_of_each_worker(monkeypatch, workers):
    monkeypatch.setattr(gate, "LEAD_CALLS", 8.0)
    world = World(workers)
    runs = "AB" * workers if workers == 1 else "ABCD"
    for run in runs:
        world.serve(run, tenant="ahead", app="long")
    served = world.serve_until_sent(world.call("Z", tenant="behind"), app="long")
    assert 7 * workers - 2 * workers < served <= 8 * workers + 1


def test_nobody_begins_at_a_worker_that_is_reserved():
    """They could begin there before the held run, as those in progress are not ahead of it."""
    world = World()
    for run in "CDEF":
        world.serve(run, tenant="ahead")
        world.close(run)
    world.serve("A", "B", tenant="behind")
    running = [world.call(run, tenant="behind") for run in "AB"]
    large = world.call("L", tenant="ahead", prompt=4500)
    world.tick(1.0)
    world.tick(HOLD_S - 1.0)
    assert world.small("S") in world.sent
    world.tick(1.0)
    assert world.small("T") not in world.sent
    assert large not in world.sent
    for call_id, run in zip(running, "AB", strict=True):
        world.end(call_id)
        world.close(run)
    assert large in world.sent


def test_a_run_that_only_a_full_kind_of_worker_can_serve_holds_up_no_other():
    world = World(workers=0)
    for name in ("plain", "special"):
        world.take(ev.WorkerJoined(name, CAPACITY, kind=name))
    world.serve("A", "B", kinds=frozenset({"special"}))
    held = world.call("C", kinds=frozenset({"special"}))
    assert held not in world.sent
    assert world.sent[world.call("D")] == "plain"
    world.close("A")
    assert world.sent[held] == "special"


def test_a_run_larger_than_the_share_begins_at_a_worker_without_others():
    world = World()
    world.serve("A")
    large = world.call("L", prompt=6000)
    assert large not in world.sent
    world.close("A")
    assert large in world.sent


def test_a_run_that_overran_its_lease_makes_room():
    world = World()
    world.serve("A", "B")
    world.tick(LONGEST_LEASE_S)
    held = world.call("C")
    world.tick(0.5)
    assert held in world.sent, "nobody knows the app's pauses, and the longest lease is over"
    assert world.call("A") not in world.sent, "it waits in the fair order again"


def test_a_worker_without_a_call_gives_the_place_of_who_is_idle_longest(idle_after):
    """So a worker is not idle for as long as the leases of runs that nobody ends."""
    idle_after(2.0)
    world = World()
    residents = world.gate.residents
    world.serve("A")
    running = world.call("B")
    held, lease_s = world.call("C"), residents.lease_s("app")
    world.tick(2.1)
    assert held not in world.sent, "B has a call"
    world.end(running)
    world.tick(1.9)
    assert held not in world.sent
    world.tick(0.2)
    assert held in world.sent
    assert "A" not in residents
    assert residents.lease_s("app") < lease_s


@pytest.mark.parametrize(("call_s", "waits_s"), [(5.0, 10.0), (1.0, 2.4)])
def test_a_worker_waits_for_runs_that_pause_as_usual(idle_after, call_s, waits_s):
    """For half of the longest recent pause of their app, but not for longer than some calls take."""
    idle_after(2.0)
    world = World()

    def serve(run):
        call_id = world.call(run)
        world.tick(call_s)
        world.end(call_id)

    serve("A")
    world.tick(20.0)
    serve("A")
    serve("B")
    held = world.call("C")
    world.tick(waits_s - 0.5)
    assert held not in world.sent
    world.tick(1.0)
    assert held in world.sent


def test_a_worker_without_a_call_gives_places_though_a_run_has_room_at_a_busy_one(idle_after):
    """The feed window of the busy one is full."""
    idle_after(2.0)
    world = World(system=GATED.with_options({"feed_window": 0.2}))
    for run in "AB":
        world.serve(run)
        world.tick(0.1)
    world.take(ev.WorkerJoined("w1", CAPACITY))
    assert world.sent[world.call("C")] == "w1"
    waiting = world.call("D")
    world.tick(1.0)
    assert waiting not in world.sent
    world.tick(1.0)
    assert world.sent[waiting] == "w0"
    assert "A" not in world.gate.residents


def test_runs_that_grew_beyond_the_cache_do_not_evict_each_other():
    """The one that began last waits instead, until there is room; a running call is not interrupted."""
    world = World()
    world.serve("A", "B")
    running = world.call("B", prompt=6000)
    world.serve("A", prompt=6000)
    world.tick(1.0)
    world.end(running)
    waiting = world.call("B", prompt=6200)
    world.tick(1.0)
    world.serve("A", prompt=6200)
    assert waiting not in world.sent
    world.close("A")
    assert waiting in world.sent


def test_who_grew_beyond_the_cache_evicts_nobody_who_holds_less():
    """Nor does it help to have begun first."""
    world = World()
    world.serve("E", tenant="evil")
    world.serve("H", tenant="honest")
    world.serve("E", tenant="evil", prompt=9000)
    world.tick(1.0)
    assert world.call("H", tenant="honest") in world.sent
    assert world.call("E", tenant="evil", prompt=9000) not in world.sent


def test_leases_follow_the_pauses_of_the_app():
    world = World()
    world.serve("A", "B")
    for _ in range(200):
        world.now_s += 2.0
        world.serve("A", "B")
    held = world.call("C")
    world.tick(3.9)
    assert held not in world.sent
    world.tick(0.2)
    assert held in world.sent, "twice the pause of two seconds"


def test_a_few_short_pauses_are_no_evidence():
    world = World()
    world.serve("A", "B")
    world.serve("A")
    held = world.call("C")
    world.tick(0.9 * LONGEST_LEASE_S)
    assert held not in world.sent


def test_a_run_that_is_expected_to_have_ended_has_a_short_lease():
    world = World()
    for _ in range(3):
        world.serve("A")
    world.serve("B")
    held = world.call("C")
    world.tick(SHORTEST_LEASE_S)
    assert held not in world.sent
    world.tick(0.1)
    assert held in world.sent
    assert "B" in world.gate.residents


def test_abandoned_runs_shorten_the_leases_of_their_app():
    """Nobody ends them, and each new run waits less; one that returns after all lengthens them."""
    world, waits = World(), []
    world.serve("A", "B")
    for number in range(60):
        held, began_s = world.call(f"C{number}"), world.now_s
        while held not in world.sent:
            world.tick(0.5)
        waits.append(world.now_s - began_s)
        world.end(held)
    assert max(waits) <= LONGEST_LEASE_S + 0.5
    assert sum(waits[-10:]) <= 10 * (SHORTEST_LEASE_S + 0.5)
    residents = world.gate.residents
    assert residents.lease_s("app") < 2.0
    world.tick(10.0)
    world.call("C55")
    assert residents.lease_s("app") > 20.0


def test_leases_are_kept_while_nobody_is_held():
    world = World()
    world.serve("A", "B")
    for _ in range(4):
        world.tick(60.0)
    assert world.call("A") in world.sent
    assert len(world.gate.residents) == 2


def test_a_run_longer_than_usual_loses_its_place_to_anybody_who_is_behind_by_a_run():
    """It has no end that one could wait for."""
    world = World()
    world.serve("A", "B", tenant="ahead")
    calls = 1 + world.serve_until_sent(world.call("C", tenant="behind"))
    assert "B" in world.gate.residents
    assert calls == 2 * CALL.calls_per_interaction + 1


def test_a_single_call_keeps_no_place_from_who_is_behind(monkeypatch):
    """The held call waits at the worker, where its local scheduler is as fair."""
    world = World()
    for number in range(3):
        world.serve(f"before-{number}", tenant="ahead", app="one")
        world.close(f"before-{number}")
    running = [world.call(f"S{number}", tenant="ahead", app="one") for number in range(4)]
    assert set(running) <= world.sent.keys()
    held = world.call("H", tenant="behind", prompt=4000)
    assert held not in world.sent
    world.tick(0.1)
    assert held in world.sent


def test_a_run_that_lost_its_place_begins_in_the_fair_order():
    world = World(system=GATED.with_options({"feeder.locality_slack": 0.0}))
    held = held_for_long(world, 1900)
    world.serve_until_sent(held)
    world.take(ev.AppChanged("app", replace(CALL, calls_per_interaction=90), Limits()))
    new = world.call("N", tenant="ahead", user="new")
    again = world.call("A", tenant="ahead")
    world.tick(0.1)
    assert world.sent.keys().isdisjoint((new, again))
    world.end(held)
    world.close("L")
    assert new in world.sent
    assert again not in world.sent


def test_a_run_that_lost_its_place_is_immune_until_it_overruns_its_lease():
    world = World()
    held = held_for_long(world, 1900)
    world.serve_until_sent(held)
    (lost,) = {"A", "B"} - {each.run_id for each in world.gate.residents.all()}
    assert world.gate.has_place(lost, world.now_s)
    world.now_s += LONGEST_LEASE_S + 1.0
    assert not world.gate.has_place(lost, world.now_s)


def test_a_call_goes_to_the_worker_that_has_the_prefix_of_its_run():
    """Though the feed window is full there. A call with another prompt goes elsewhere."""
    world = World(workers=2, system=GATED.with_options({"feed_window": 0.01}))
    world.serve("A")
    worker_id = next(iter(world.sent.values()))
    while worker_id in world.dispatcher.first.worker_table.open:
        world.call("B" if len(world.sent) == 1 else "C", prompt=500)
    assert world.sent[world.call("A")] == worker_id
    assert world.sent[world.call("A", text="other")] != worker_id


def one_call_runs(world, number):
    """Return how many runs of one call begin, of so many."""
    calls = [world.call(f"S{each}", "single", app="one") for each in range(number)]
    return sum(call in world.sent for call in calls)


def test_runs_of_one_call_may_use_all_of_the_cache():
    assert one_call_runs(World(), 9) == CAPACITY // 2050


def test_a_run_larger_than_all_caches_waits_for_the_worker_that_has_least_to_lose(idle_after):
    """At the other one a prefix like its own lies, in a call that does not end."""
    idle_after(2.0)
    world = World(workers=2)
    first = world.call("A", prompt=12_000, text="book")
    world.serve("B")
    assert world.sent["B-2"] != world.sent[first]
    second = world.call("C", prompt=12_000, text="book")
    world.tick(0.1)
    assert second not in world.sent
    world.tick(2.0)
    assert world.sent[second] == world.sent["B-2"]


def test_runs_of_one_call_evict_no_prefix_that_is_kept():
    world = World()
    world.serve("A")
    assert one_call_runs(world, 9) == (CAPACITY - 2050) // 2050


def test_nobody_loses_a_place_to_who_is_behind_by_less_than_a_run():
    world = World()
    world.serve("A", "B", tenant="ahead")
    running = [world.call(run, tenant="ahead") for run in "AB"]
    held = world.call("C", tenant="behind")
    world.tick(1.0)
    world.tick(2 * HOLD_S)
    assert held not in world.sent
    assert len(running) == 2


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
    world.serve("A", "B", "C", "D")
    world.take(ev.WorkerLost("w1"))
    residents = {each.run_id: each for each in world.gate.residents.all()}
    assert len(residents) == 2
    gone = next(run for run in "ABCD" if run not in residents)
    assert world.call(gone) in world.sent


def test_a_cancelled_call_holds_no_place():
    world = World()
    world.serve("A", "B")
    held = world.call("C")
    world.take(ev.CancelRequested(held))
    world.close("A")
    assert world.call("D") in world.sent


def test_immunity_cannot_be_stored():
    """Runs that began while nothing was limited do not pass the limit of an overload later."""
    world = World()
    world.take(ev.AppChanged("small", SMALL, Limits(user_rpm=1)))
    runs = [f"S{number}" for number in range(4)]
    for run in runs:
        world.serve(run, app="small", prompt=300)
    world.tick(LONGEST_LEASE_S + 1)
    world.call("S0", app="small", prompt=300)
    for number in range(12):
        world.call(f"load {number}", tenant="other", prompt=3000)
    assert world.dispatcher.overloaded
    kept, *rejected = (world.call(run, app="small", prompt=300) for run in runs)
    assert kept not in world.rejected, "in progress"
    assert world.rejected.keys() == set(rejected)
    assert not any(world.rejected.values())


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


@pytest.mark.parametrize(
    ("runs", "before"),
    [("AAAAA", 5), ("AAAAB", 4), ("AAAAAAAA", 5)],
    ids=["own calls", "calls of another run", "a run longer than usual"],
)
def test_what_a_run_has_had_is_no_reason_to_wait_for_a_newcomer(runs, before):
    """``runs`` are those of one user's next calls, while a new user of the tenant waits."""
    options = {"resident_share": 1.0, "feed_window": 0.01}
    world = World(system=GATED.with_options({**options, "feeder.locality_slack": 0.0}))
    for run in sorted(set(runs)):
        world.serve(run, user="old")
    waiting = world.call("Z", user="first")
    newcomer, served = world.call("N", user="new"), 0
    for run in runs:
        call_id = world.call(run, user="old")
        assert call_id not in world.sent
        world.tick(3.0)
        world.end(waiting)
        if newcomer in world.sent:
            break
        assert call_id in world.sent
        waiting, served = call_id, served + 1
    assert served == before
