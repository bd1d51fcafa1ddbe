"""Virtual counters: VTC's Lemma 4.3 and Theorem 4.4 on random backlogs, and what the lift is for."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from fairserve.scheduling.counters import VirtualCounters


class Plain:
    """Algorithm 2 lines 6-13 written down literally."""

    def __init__(self):
        self.value, self.queued, self.last_left = {}, {}, None

    def arrive(self, client, number):
        if client not in self.queued:
            level = min(
                (self.value[c] for c in self.queued), default=self.value.get(self.last_left, 0.0)
            )
            self.value[client] = max(self.value.get(client, 0.0), level)
        self.queued.setdefault(client, []).append(number)

    def leave(self, client):
        """The client's earliest call leaves; returns the arrival of its next one."""
        del self.queued[client][0]
        if self.queued[client]:
            return self.queued[client][0]
        del self.queued[client]
        self.last_left = client
        return None

    def least(self):
        """Smallest counter, ties by arrival."""
        return min(self.queued, key=lambda c: (self.value[c], self.queued[c][0]))


operations = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "dispatch", "charge", "done"]),
        st.integers(0, 4),
        st.integers(0, 50),
    ),
    max_size=120,
)


@settings(max_examples=200, deadline=None)
@given(operations)
def test_equal_to_the_literal_algorithm(steps):
    counters, plain, running = VirtualCounters(), Plain(), []
    for step, (kind, number, cost) in enumerate(steps):
        client = f"c{number}"
        if kind == "arrive":
            counters.arrive(client, step)
            plain.arrive(client, step)
        elif kind == "dispatch" and client in plain.queued:
            counters.dispatch(client, plain.leave(client))
            running.append(client)
        elif kind == "charge" and client in running:
            counters.charge(client, cost)
            plain.value[client] += cost
        elif kind == "done" and client in running:
            counters.done(client)
            running.remove(client)
        for other in plain.queued:
            assert counters.value(other) == plain.value[other]
        if plain.queued:
            lowest = min(plain.value[c] for c in plain.queued)
            assert counters.minimum() == lowest
            assert counters.least() == plain.least()
            assert [value for value, _ in counters.up_to(10)] == sorted(
                plain.value[c] for c in plain.queued if plain.value[c] <= lowest + 10
            )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_queued_counters_stay_within_one_call(seed, clients):
    """Lemma 4.3: max - min <= U over queued clients, when each selection charges at most U."""
    rng = random.Random(seed)
    counters, plain = VirtualCounters(), Plain()
    largest = 30.0
    for step in range(300):
        client = f"c{rng.randrange(clients)}"
        if rng.random() < 0.5 and counters.queued(client) < 20:
            counters.arrive(client, step)
            plain.arrive(client, step)
        elif counters.queued_clients:
            chosen = counters.least()
            counters.dispatch(chosen, plain.leave(chosen))
            counters.charge(chosen, rng.uniform(0, largest))
            counters.done(chosen)
        queued = [counters.value(c) for c in counters.queued_clients]
        if queued:
            assert max(queued) - min(queued) <= largest + 1e-9


def test_the_lift_denies_credit_for_idling():
    counters = VirtualCounters()
    counters.arrive("busy", 1)
    counters.arrive("busy", 2)
    counters.charge("busy", 1000.0)
    counters.arrive("returned", 3)
    assert counters.value("returned") == 1000.0


def test_the_lift_ignores_predictions():
    """A newcomer is not lifted to a level that will be given back."""
    counters = VirtualCounters()
    counters.arrive("busy", 1)
    counters.arrive("busy", 2)
    counters.dispatch("busy", 2)
    counters.reserve("busy", 500.0)
    counters.arrive("new", 3)
    assert counters.value("new") == 0.0
    counters.release("busy", 500.0)
    assert counters.value("busy") == 0.0


def test_idle_counters_are_forgotten_when_the_lift_makes_it_harmless():
    counters = VirtualCounters()
    counters.arrive("anchor", 0)
    counters.charge("anchor", 1e6)
    for number in range(5000):
        counters.arrive(f"c{number}", number + 1)
        counters.dispatch(f"c{number}", None)
        counters.done(f"c{number}")
    assert len(counters._value) < 3000
    assert len(counters._heap) < 3000


def test_ties_go_to_the_earlier_call_also_after_it_was_put_back():
    counters = VirtualCounters()
    counters.arrive("b", 1)
    counters.arrive("a", 2)
    assert counters.least() == "b"
    counters.dispatch("b", None)
    assert counters.least() == "a"
    counters.done("b")
    counters.arrive("b", 1)
    assert counters.least() == "b"
    counters.arrive("a", 0)
    assert counters.least() == "a"


def test_snapshot_restores():
    counters = VirtualCounters()
    for arrival, client in enumerate(("a", "b", "a")):
        counters.arrive(client, arrival)
    counters.dispatch("a", 2)
    counters.reserve("a", 3.0)
    other = VirtualCounters()
    other.restore(counters.snapshot())
    assert other.snapshot() == counters.snapshot()
    assert other.minimum() == counters.minimum()
