"""Round robin equals a plain list, and promises equal shares and kept turns."""

import random
from collections import Counter

import pytest
from histories import histories
from hypothesis import given
from hypothesis import strategies as st
from virtual_cluster import make_call

from fairserve.scheduling.routers.round_robin import RoundRobin, RoundRobinOptions

WORKERS = ["w0", "w1", "w2", "w3"]


def router(workers=WORKERS, **options):
    made = RoundRobin(RoundRobinOptions(**options))
    for worker in workers:
        made.add_worker(worker)
    return made


def place(made, number, user, open_workers=WORKERS):
    call = make_call(f"c{number}", user=user)
    worker = made.select(call, open_workers)
    if worker is not None:
        made.dispatched(call, worker, 1.0)
    return worker


class PlainTurns:
    """A list of workers per client as reference; the served one moves to its end."""

    def __init__(self, per_client):
        self.per_client = per_client
        self.workers = []
        self.turns = {}

    def add(self, worker):
        self.workers.append(worker)
        for turn in self.turns.values():
            turn.append(worker)

    def remove(self, worker):
        self.workers.remove(worker)
        for turn in self.turns.values():
            turn.remove(worker)

    def place(self, user, open_workers):
        key = user if self.per_client else None
        if key not in self.turns:
            first = len(self.turns) % len(self.workers) if self.workers else 0
            turn = self.workers[first:] + self.workers[:first]
        else:
            turn = self.turns[key]
        for worker in turn:
            if worker in open_workers:
                turn.remove(worker)
                turn.append(worker)
                self.turns[key] = turn
                return worker
        return None


@given(
    st.booleans(),
    histories(
        st.tuples(st.integers(0, 6), st.integers(0, 3), st.sets(st.sampled_from(WORKERS))), 80
    ),
)
def test_the_order_equals_a_plain_list(per_client, steps):
    made, plain = router([], per_client=per_client), PlainTurns(per_client)
    for number, (kind, which, open_workers) in enumerate(steps):
        worker = WORKERS[which]
        if kind == 0 and worker not in plain.workers:
            made.add_worker(worker)
            plain.add(worker)
        elif kind == 1 and worker in plain.workers:
            made.remove_worker(worker)
            plain.remove(worker)
        else:
            user = f"u{which}"
            assert place(made, number, user, open_workers) == plain.place(user, open_workers)


def test_workers_take_turns():
    made = router()
    placed = [place(made, number, f"u{number % 3}") for number in range(8)]
    assert placed == WORKERS * 2


def test_each_client_is_spread_equally_whatever_others_send(seed):
    """Theorem A.6 requires this: a client's workers never differ by more than one call."""
    rng = random.Random(seed)
    made = router(per_client=True)
    shares = {}
    for number in range(600):
        user = f"u{rng.choice([0, 0, 0, 0, 1, 2, 2])}"
        counts = shares.setdefault(user, Counter(dict.fromkeys(WORKERS, 0)))
        counts[place(made, number, user)] += 1
        assert max(counts.values()) - min(counts.values()) <= 1


def test_common_turns_do_not_spread_each_client():
    """VTC needs turns per client: in step with the number of workers a client stays on one."""
    made = router(["w0", "w1"])
    placed = [(number % 2, place(made, number, f"u{number % 2}")) for number in range(20)]
    assert {worker for user, worker in placed if user == 0} == {"w0"}


def test_a_closed_worker_keeps_its_turn():
    made = router()
    without = [worker for worker in WORKERS if worker != "w0"]
    assert [place(made, n, "u", without) for n in range(4)] == ["w1", "w2", "w3", "w1"]
    assert [place(made, n, "u") for n in range(4, 9)] == ["w0", "w2", "w3", "w1", "w0"]


def test_clients_of_one_call_are_spread():
    made = router(per_client=True)
    placed = Counter(place(made, number, f"u{number}") for number in range(40))
    assert set(placed.values()) == {10}


def test_the_least_recent_client_is_evicted():
    made = router(per_client=True, max_clients=2)
    for number, user in enumerate(["a", "b", "a", "c"]):
        place(made, number, user)
    assert [client for client, _ in made.snapshot()["turns"]] == ["t/a", "t/c"]


def test_invalid_options_are_rejected():
    with pytest.raises(ValueError, match="max_clients is 0; allowed: 1 or more"):
        RoundRobinOptions(max_clients=0)


def test_client_names_are_not_confused_when_joined():
    router = RoundRobin(RoundRobinOptions(per_client=True))
    for worker in ("w0", "w1"):
        router.add_worker(worker)
    for name, path in (("a", ("t/u", "v")), ("b", ("t", "u/v"))):
        call = make_call(name, tenant=path[0], user=path[1])
        router.dispatched(call, router.select(call, ["w0", "w1"]), 1.0)
    assert len(router.snapshot()["turns"]) == 2
