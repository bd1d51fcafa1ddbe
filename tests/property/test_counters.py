"""Virtual counters by levels equal a literal implementation, and the lift has its purpose."""

import json
import random

import pytest
from histories import histories
from hypothesis import given
from hypothesis import strategies as st
from plain_counters import PlainCounters

from fairserve.benchmarks.policies.lcf import UnliftedCounters
from fairserve.scheduling.fairness.counters import VirtualCounters

PATHS = {
    1: [(f"c{n}",) for n in range(5)],
    2: [(f"t{n % 2}", f"c{n}") for n in range(6)],
    3: [(f"t{n % 2}", f"a{n % 3}", f"c{n}") for n in range(9)],
}

operations = histories(
    st.tuples(
        st.sampled_from(
            [
                *("arrive", "arrive", "dispatch", "dispatch"),
                *("cancel", "charge", "by level", "done", "back", "elsewhere"),
            ]
        ),
        st.integers(0, 8),
        st.integers(0, 12),
    ),
    120,
)


class Both:
    """The counters and the literal algorithm, driven in step; costs are integers."""

    def __init__(self, levels, lift_when_idle=True):
        self.paths = PATHS[levels]
        self.counters = VirtualCounters(lift_when_idle=lift_when_idle)
        self.plain = PlainCounters(lift_when_idle)
        self.nodes, self.running = {}, []
        """Nodes of clients that have calls; ``(path, arrival, reserved)`` of running calls."""

    def do(self, number, kind, which, cost):
        path = self.paths[which % len(self.paths)]
        queued = self.plain.calls.get(path)
        if kind == "arrive":
            self.nodes[path] = self.counters.arrive(path, number)
            self.plain.arrive(path, number)
        elif kind == "dispatch" and queued:
            arrival, reserved = queued[0], cost // 2
            self.counters.dispatch(self.nodes[path], self.plain.leave(path), cost, reserved)
            self.plain.add(path, cost)
            self.plain.add(path, reserved, self.plain.reserved)
            self.running.append((path, arrival, reserved))
        elif kind == "elsewhere":
            served, reserved = cost - 1, number % 7 - 3
            self.counters.charge_elsewhere(path, served, reserved)
            self.plain.elsewhere(path, served, reserved)
        elif kind == "cancel" and queued:
            self.counters.leave(self.nodes[path], self.plain.leave(path))
        elif self.running:
            path, arrival, reserved = self.running.pop(which % len(self.running))
            node = self.nodes[path]
            if kind == "charge":
                true = min(cost, reserved)
                self.counters.charge(node, cost)
                self.counters.realise(node, true)
                self.plain.add(path, cost + true)
                self.plain.add(path, -true, self.plain.reserved)
                self.running.append((path, arrival, reserved - true))
                return
            if kind == "by level":
                factors = (1.0, 0.5, 2.0)
                self.counters.change(node, cost, 0.0, factors)
                self.plain.add(path, cost, factors=factors)
                self.running.append((path, arrival, reserved))
                return
            if reserved:
                self.counters.release(node, reserved)
                self.plain.add(path, -reserved, self.plain.reserved)
            if kind == "done":
                self.counters.done(node)
            elif kind == "back":
                self.counters.refund(node, min(cost, self.plain.value[path]))
                self.plain.refund(path, min(cost, self.plain.value[path]))
                self.counters.done(node)
                self.nodes[path] = self.counters.arrive(path, arrival)
                self.plain.arrive(path, arrival)
            else:
                self.counters.done(node)

    def queued_clients(self):
        return {path for path, node in self.nodes.items() if node.queued}

    def check(self):
        counters, plain = self.counters, self.plain
        for path in self.paths:
            for depth in range(1, len(path) + 1):
                assert counters.value(path[:depth]) == plain.total(path[:depth])
                assert counters.queued(path[:depth]) == len(plain.arrivals(path[:depth]))
        queued = {path for path in self.paths if plain.calls.get(path)}
        assert self.queued_clients() == queued
        for path in queued:
            values = tuple(plain.total(path[: depth + 1]) for depth in range(len(path)))
            for slack in (0, 5):
                expected = values if plain.within(path, slack) else None
                assert counters.reach(slack)(self.nodes[path]) == expected
        if queued:
            assert counters.least().path == plain.least()
            assert counters.minimum() == min(plain.total(path) for path in plain.children(()))


@given(st.sampled_from([1, 2, 3]), st.booleans(), operations)
def test_counters_equal_the_literal_algorithm(levels, lift_when_idle, steps):
    """The history has joins, leaves, predictions, cancellations, preemptions and refunds."""
    both = Both(levels, lift_when_idle)
    for number, step in enumerate(steps):
        both.do(number, *step)
        both.check()


@given(st.sampled_from([1, 2, 3]), operations)
def test_counters_are_equal_without_intermediate_lookups(levels, steps):
    """The heaps are lazy: their backlog between two lookups must not matter."""
    both = Both(levels)
    for number, step in enumerate(steps):
        both.do(number, *step)
        if number % 17 == 16:
            both.check()
    both.check()


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_counters_are_equal_in_a_long_run(levels, seed):
    """The run is long enough for the heaps to be rebuilt, with ties all the time."""
    rng = random.Random(seed)
    both = Both(levels)
    kinds = ["arrive", "arrive", "dispatch", *["charge"] * 3, "done", "back", "elsewhere"]
    for number in range(3000):
        both.do(number, rng.choice(kinds), rng.randrange(9), rng.randrange(3))
        if number % 40 == 0:
            both.check()
    assert len(both.running) + len(both.queued_clients()) > 3


@given(st.sampled_from([1, 2, 3]), operations, st.integers(0, 120))
def test_a_restored_snapshot_continues_as_the_original(levels, steps, middle):
    """The state passes through plain JSON; the same continuation ends in the same state."""
    both = Both(levels)
    for number, step in enumerate(steps[:middle]):
        both.do(number, *step)
    restored = VirtualCounters()
    restored.restore(json.loads(json.dumps(both.counters.snapshot())))
    assert restored.snapshot() == both.counters.snapshot()
    other = Both(levels)
    other.counters, other.plain = restored, both.plain
    other.running = list(both.running)
    other.nodes = {path: restored.client(path) for path in both.nodes}
    shadow = json.loads(json.dumps([[list(p), v] for p, v in both.plain.value.items()]))
    plain = PlainCounters()
    plain.value = {tuple(p): v for p, v in shadow}
    plain.reserved = dict(both.plain.reserved)
    plain.reserved_elsewhere = dict(both.plain.reserved_elsewhere)
    plain.calls = {p: list(numbers) for p, numbers in both.plain.calls.items()}
    plain.last_left = dict(both.plain.last_left)
    other.plain = plain
    for number, step in enumerate(steps[middle:], len(steps)):
        both.do(number, *step)
        other.do(number, *step)
    other.check()
    assert restored.snapshot() == both.counters.snapshot()


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 3))
def test_queued_counters_stay_within_one_call(seed, clients, levels):
    """Lemma 4.3 among siblings: max - min <= U over queued ones, a selection charging at most U."""
    rng = random.Random(seed)
    counters, plain = VirtualCounters(), PlainCounters()
    paths = [(f"t{n % 2}", f"a{n % 3}", f"c{n}")[3 - levels :] for n in range(clients)]
    largest = 30.0
    for step in range(300):
        path = rng.choice(paths)
        if rng.random() < 0.5 and counters.queued(path) < 20:
            counters.arrive(path, step)
            plain.arrive(path, step)
        elif any(map(counters.queued, paths)):
            chosen = counters.least()
            counters.dispatch(chosen, plain.leave(chosen.path), rng.uniform(0, largest))
            counters.done(chosen)
        for above in {path[:depth] for path in paths for depth in range(levels)}:
            queued = [counters.value(p) for p in plain.children(above)]
            if queued:
                assert max(queued) - min(queued) <= largest + 1e-9


def test_a_lift_under_predictions_reads_few_clients():
    """With 500 queued clients and predictions, each of 500 arrivals reads a few entries of a heap."""
    counters = VirtualCounters()
    looked = 0

    class Watched(float):
        def __lt__(self, other):
            nonlocal looked
            looked += 1
            return float(self) < other

    for number in range(1000):
        if number == 500:
            looked = 0
        path = (f"c{number}",)
        client = counters.arrive(path, 2 * number)
        counters.arrive(path, 2 * number + 1)
        counters.dispatch(client, 2 * number + 1, Watched(number % 7), 3.0)
        client.served = Watched(client.served)
    assert 0 < looked < 500 * 40


def test_idle_counters_are_evicted_once_the_lift_makes_it_safe():
    counters = VirtualCounters()
    counters.charge(counters.arrive(("anchor",), 0), 1e6)
    for number in range(5000):
        client = counters.arrive((f"c{number}",), number + 1)
        counters.dispatch(client, None)
        counters.done(client)
    assert counters._nodes == sum(1 for _ in counters._root.below()) < 3000
    assert len(counters._root.by_counter) < 3000
    assert counters.value(("anchor",)) == 1e6


@pytest.mark.parametrize("made", [VirtualCounters, lambda: UnliftedCounters(500)])
def test_idle_nodes_are_evicted_at_every_level(made):
    """Covered are users of a lasting tenant, users of leaving tenants, and the cost of all of them."""
    rng = random.Random(1)
    counters = made()
    anchor = counters.arrive(("stays", "anchor"), 0)
    most = 0
    for number in range(1, 8000):
        counters.charge(anchor, 1.0)
        tenant = "stays" if number % 2 else f"t{number // 8}"
        client = counters.arrive((tenant, f"u{number}"), number)
        counters.dispatch(client, None, rng.randint(0, 40))
        counters.done(client)
        counters.least()
        if number % 50 == 0:
            most = max(most, sum(1 for _ in counters._root.below()))
    assert most < 4000
    assert counters._nodes == sum(1 for _ in counters._root.below())
    kept = counters._root.children["stays"]
    assert len(kept.by_counter) + len(kept.by_arrival or ()) < 4000
    assert counters.least() is anchor


def test_a_counter_above_the_others_is_kept():
    counters = VirtualCounters()
    counters.arrive(("busy", "u"), 0)
    ahead = counters.arrive(("ahead", "u"), 1)
    counters.dispatch(ahead, None, 500.0)
    counters.done(ahead)
    last = counters.arrive(("last", "u"), 1)  # the last client to leave is kept anyway
    counters.dispatch(last, None)
    counters.done(last)
    for number in range(3000):
        client = counters.arrive(("busy", f"c{number}"), number + 2)
        counters.dispatch(client, None)
        counters.done(client)
    assert counters._nodes < 3000
    assert counters.value(("ahead",)) == 500.0


def test_a_client_with_a_running_call_is_kept():
    counters = VirtualCounters()
    counters.arrive(("busy",), 0)
    runs = counters.arrive(("runs",), 1)
    counters.dispatch(runs, None)
    for number in range(3000):
        client = counters.arrive((f"c{number}",), number + 2)
        counters.dispatch(client, None)
        counters.done(client)
    assert counters._nodes < 3000
    counters.charge(runs, 500.0)
    assert counters.value(("runs",)) == 500.0


def test_a_client_may_be_a_prefix_of_other_paths():
    """Its own calls compete with the longer paths as a child named "", in any order of arrival."""
    counters = VirtualCounters()
    early = counters.arrive(("t",), 1)
    counters.dispatch(early, None, 5.0)
    other = counters.arrive(("o",), 2)
    counters.arrive(("t", "u"), 3)
    assert counters.value(("t",)) == 5.0
    assert counters.value(("t", "")) == 5.0
    counters.charge(early, 1.0)  # it is still running, and its node remains valid
    assert counters.value(("t",)) == counters.value(("t", "")) == 6.0
    assert counters.value(("t", "u")) == 5.0
    counters.charge(other, 10.0)
    assert counters.least().path == ("t", "u")
    assert counters.arrive(("t",), 4) is early
    restored = VirtualCounters()
    restored.restore(json.loads(json.dumps(counters.snapshot())))
    assert restored.snapshot() == counters.snapshot()
    assert [restored.queued(path) for path in (("t", ""), ("o",), ("t", "u"))] == [1, 1, 1]


def test_lookups_without_clients():
    counters = VirtualCounters()
    assert counters.value(("nobody", "here")) == counters.queued(("nobody",)) == 0
    for question in (counters.least, counters.minimum, lambda: counters.minimum(("nobody",))):
        with pytest.raises(IndexError):
            question()
    with pytest.raises(ValueError, match="a client path has no levels; allowed: one or more"):
        counters.arrive((), 1)


def test_a_client_that_becomes_a_level_keeps_no_reservation_of_other_counters():
    """The factors of its release may not apply to what it had as a client."""
    counters, factors = VirtualCounters(), (0.0, 1.0, 0.0)
    counters.charge_elsewhere(("t", "b"), 0.0, 1.0, factors)
    counters.charge_elsewhere(("t", "b", "c"), 1.0)
    counters.charge_elsewhere(("t", "b"), 0.0, -1.0, factors)
    assert all(node.reserved == 0 for node in counters._root.below())
