"""Bounded tables that all clients share: nobody under his share is rejected, whatever others send."""

import contextlib
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions import errors
from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.lazy_heap import SLACK
from fairserve.interactions.tracking.shares import Shares
from fairserve.interactions.tracking.tracker import TrackerLimits
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.dispatch.queue_places import QueueBounds
from fairserve.scheduling.registry import SYSTEMS

SEEDS = st.integers(0, 2**32)


def owner_of(rng, clients):
    """Return a client of a skewed mix: few have most of the entries."""
    return tuple(f"{level}{int(clients * rng.random() ** 3)}" for level in "tau")


def under_its_share(owner, owners):
    """Return whether an owner has fewer entries than its share, at some level of its path."""
    for depth in range(3):
        beside = [each for each in owners if each[:depth] == owner[:depth]]
        siblings = {each[: depth + 1] for each in beside} | {owner[: depth + 1]}
        own = sum(each[: depth + 1] == owner[: depth + 1] for each in beside)
        if own < len(beside) // len(siblings):
            return True
    return False


@given(SEEDS, st.integers(1, 5), st.integers(1, 30), st.booleans())
def test_the_entry_that_leaves_is_of_who_has_most(seed, clients, bound, newest_first):
    """Compare with sums over a list."""
    rng = random.Random(seed)
    shares, entries = Shares(2, newest_first=newest_first), []
    for number in range(200):
        owner, rank = owner_of(rng, clients), rng.choice([0, 1, 1, None])
        if entries and rng.random() < 0.2:
            entry = entries.pop(rng.randrange(len(entries)))
            shares.leave(entry[1])
        if entries and rng.random() < 0.1:
            before, key, _ = entries.pop(rng.randrange(len(entries)))
            shares.change(key, rank)
            entries.append((before, key, rank))
        owners = [entry[0] for entry in entries]
        if len(entries) >= bound:
            found = shares.displaced_by(owner, 0 if rank is None else rank)
            free = all(entry[2] is not None for entry in entries)
            if found is None:
                assert not (free and under_its_share(owner, owners))
                continue
            (left,) = (entry for entry in entries if entry[1] == found)
            assert left[2] is not None
            depth = next((d for d in range(3) if left[0][d] != owner[d]), 3)
            if depth < 3:
                sizes = [
                    sum(each[: depth + 1] == path[: depth + 1] for each in owners)
                    for path in (left[0], owner)
                ]
                assert sizes[0] >= sizes[1] + 2, "equals do not displace each other"
            else:
                assert left[2] < rank
            same = [e for e in entries if e[0] == left[0] and e[2] == left[2]]
            assert left == (same[-1] if newest_first else same[0])
            assert left[2] == min(e[2] for e in entries if e[0] == left[0] and e[2] is not None)
            shares.leave(left[1])
            entries.remove(left)
        shares.enter(owner, number, rank)
        entries.append((owner, number, rank))
        assert len(shares) == len(entries)
        for depth in range(4):
            count = sum(entry[0][:depth] == owner[:depth] for entry in entries)
            assert shares.count(owner[:depth]) == count
    for entry in entries:
        shares.leave(entry[1])
    assert (len(shares), shares.most(("t", "a", "u"))) == (0, None)


class Arrivals:
    """A dispatcher with a bounded queue and run table, and every call's fate."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.calls = self.rng.choice([4, 12, 30])
        self.bounds = QueueBounds(
            self.calls, *(max(1, int(self.calls * self.rng.choice([1.0, 0.5, 0.25]))) for _ in "tu")
        )
        self.limits = TrackerLimits(
            live_runs=self.rng.choice([40, 200]), tenant_share=0.5, user_share=0.25, dormant_runs=20
        )
        self.dispatcher = self.new()
        self.now_s = 0.0
        self.queued, self.running, self.ended = {}, {}, {}
        self.handle(ev.WorkerJoined("w", 2_000))

    def new(self):
        return Dispatcher(
            SYSTEMS["fairserve"], tracker_limits=self.limits, queue_bounds=self.bounds
        )

    def handle(self, event):
        """Handle an event; return the rejection of the arriving call, if any."""
        own, rejection = getattr(event, "call", None), None
        for command in self.dispatcher.handle(event, self.now_s):
            match command:
                case ev.Admit():
                    self.running[command.call_id] = self.queued.pop(command.call_id)
                case ev.Refuse() if own is not None and command.call_id == own.call_id:
                    rejection = command
                case ev.Refuse():
                    self.end(command.call_id, self.queued)
                    assert command.decision.reason.startswith("queue_")
                    assert command.decision.retry_after_s > 0
                case ev.CancelCall():
                    self.end(command.call_id, self.queued)
        if rejection is not None:
            self.end(own.call_id, self.queued)
        return rejection

    def end(self, call_id, calls):
        assert call_id not in self.ended, "it ends once"
        self.ended[call_id] = calls.pop(call_id)

    def step(self, number):
        self.now_s += 1.0
        fate = self.rng.random()
        if fate < 0.6:
            self.arrive(number)
        elif fate < 0.7:
            run, owner = f"opened-{number}", owner_of(self.rng, 4)
            with contextlib.suppress(errors.InteractionError):
                self.handle(ev.InteractionOpened(run, *owner))
        elif fate < 0.9 and self.running:
            call_id = self.rng.choice(sorted(self.running))
            if self.rng.random() < 0.2:
                self.queued[call_id] = self.running.pop(call_id)
                self.handle(ev.CallReturned(call_id))
                return
            self.end(call_id, self.running)
            self.handle(ev.CallEnded(call_id, "completed", TokenUsage(50, 0, 0, 10)))
        elif self.queued:
            call_id = self.rng.choice(sorted(self.queued))
            self.handle(ev.CancelRequested(call_id))
        else:
            self.handle(ev.Tick())

    def arrive(self, number):
        owner = owner_of(self.rng, 4)
        run = f"{owner}-{self.rng.randrange(3)}" if self.rng.random() < 0.5 else f"run-{number}"
        call = Call(f"{run}/{number}", *owner, run, "m", 50, 0, 100, single=run[:3] == "run")
        waiting = list(self.queued.values())
        self.queued[call.call_id] = owner, False
        over = len(self.queued) - 1 - self.bounds.calls
        try:
            rejection = self.handle(ev.CallArrived(call))
        except errors.InteractionError:
            del self.queued[call.call_id]
            return
        assert len(self.queued) <= max(self.bounds.calls, self.bounds.calls + over)
        if rejection is not None and rejection.decision.reason.startswith("queue_"):
            scope = rejection.decision.scope
            if scope == "tenant":
                waiting = [each for each in waiting if each[0][0] == owner[0]]
            fixed = any(fixed for _, fixed in waiting)  # its owner may have more and lose nothing
            if scope != "user" and not fixed:
                assert not under_its_share(owner, [each for each, _ in waiting])


@given(SEEDS)
def test_a_full_queue_rejects_nobody_under_his_share_and_loses_no_call(seed):
    arrivals = Arrivals(seed)
    for number in range(150):
        arrivals.step(number)
        arrivals.queued = {
            call_id: (owner, arrivals.dispatcher._live[call_id].call.avoid != frozenset())
            for call_id, (owner, _) in arrivals.queued.items()
        }
        state = arrivals.dispatcher
        assert state.queued("") == len(arrivals.queued)
        assert len(state.tracker) <= arrivals.limits.live_runs
        assert state._live.keys() == arrivals.queued.keys() | arrivals.running.keys()
        if number % 50 == 25:
            plain = json.loads(json.dumps(state.snapshot(arrivals.now_s)))
            arrivals.dispatcher = arrivals.new()
            arrivals.dispatcher.restore(plain, arrivals.now_s)
            assert arrivals.dispatcher.snapshot(arrivals.now_s) == state.snapshot(arrivals.now_s)


@given(SEEDS)
def test_a_restored_queue_displaces_the_same_calls(seed):
    arrivals = Arrivals(seed)
    for number in range(60):
        arrivals.step(number)
    restored = arrivals.new()
    restored.restore(
        json.loads(json.dumps(arrivals.dispatcher.snapshot(arrivals.now_s))), arrivals.now_s
    )
    for number in range(60, 90):
        owner = owner_of(arrivals.rng, 4)
        found = []
        for each in (arrivals.dispatcher, restored):
            call = Call(f"late/{number}", *owner, f"late-{number}", "m", 50, 0, 100)
            try:
                found.append(each.handle(ev.CallArrived(call), arrivals.now_s))
            except errors.InteractionError as error:
                found.append(str(error))
        assert found[0] == found[1]


def queue_of(places, owners):
    """Return a dispatcher without workers, with ``places`` and a queued call of each owner."""
    limits = TrackerLimits(live_runs=1000, tenant_share=1.0, user_share=1.0, dormant_runs=20)
    bounds = QueueBounds(places, places, places)
    dispatcher = Dispatcher(SYSTEMS["fairserve"], tracker_limits=limits, queue_bounds=bounds)
    for number, owner in enumerate(owners):
        assert refusals(dispatcher, number, owner) == []
    return dispatcher


def refusals(dispatcher, number, owner):
    """Return the rejections for one more call of an owner."""
    call = Call(f"c{number}", *owner, f"r{number}", "m", 50, 0, 100)
    commands = dispatcher.handle(ev.CallArrived(call), 0.0)
    return [each for each in commands if isinstance(each, ev.Refuse)]


@pytest.mark.parametrize(
    "crowd",
    [
        [("t", "app", f"u{number}") for number in range(48)],
        [("t", f"app{number}", "u") for number in range(48)],
        [("t", f"app{number}", f"u{number}") for number in range(47)] + [("s", "app", "u")],
    ],
    ids=["users", "apps", "users and apps beside another tenant"],
)
def test_users_and_apps_with_one_call_each_take_no_place_from_another_tenant(crowd):
    dispatcher = queue_of(48, crowd)
    for number in range(100, 100 + 48 // 3):
        (rejected,) = refusals(dispatcher, number, ("quiet", "its app", "its user"))
        assert int(rejected.call_id[1:]) < 100, "a call of the crowd makes room"
    for number in range(200, 248):  # one of the crowd, or more of its users
        for each in refusals(dispatcher, number, ("t", "app", f"late {number}")):
            assert not 100 <= int(each.call_id[1:]) < 200, "no call of the quiet tenant leaves"


def test_an_arrival_is_rejected_with_a_time_if_each_tenant_has_its_share():
    """With a place each, nobody has more than the share of an arrival, so the first ones keep theirs."""
    dispatcher = queue_of(48, [(f"t{number}", "app", "u") for number in range(48)])
    (rejected,) = refusals(dispatcher, 100, ("late", "app", "u"))
    assert (rejected.call_id, rejected.decision.reason) == ("c100", "queue_full")
    assert rejected.decision.retry_after_s > 0
    dispatcher.handle(ev.CancelRequested("c7"), 0.0)
    assert refusals(dispatcher, 101, ("late", "app", "u")) == []


def test_the_order_of_siblings_is_bounded_by_their_number():
    shares = Shares(newest_first=True)
    for number in range(2000):
        owner = f"t{number % 10}", "app", "u"
        shares.enter(owner, number)
        if number % 3:
            shares.leave(number)
        assert shares.displaced_by(("new", "app", "u"), 0) is not None or number < 60
        assert len(shares._table().order._heap) <= 2 * 10 + SLACK
