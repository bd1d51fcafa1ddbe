"""Adapted deficit round robin equals rounds executed literally, and keeps its bound."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_worker import OneWorker

from fairserve.benchmarks.policies.drr import Drr, DrrOptions
from fairserve.scheduling.base import LocalCall
from fairserve.scheduling.local.vtc import Vtc


class Literal:
    """VTC C.2 executed round by round: the ring, one visit after the other."""

    def __init__(self, quantum):
        self.quantum, self.ring, self.at, self.balance = quantum, [], -1, {}
        self.joining, self.queues = [], {}

    def arrive(self, client, call_id):
        if client not in self.balance:
            self.balance[client] = 0.0
            self.joining.append(client)
        self.queues.setdefault(client, []).append(call_id)

    def next(self):
        """Return the next call; the ring stays at its client."""
        if not any(self.queues.values()):
            return None
        if 0 <= self.at < len(self.ring):
            client = self.ring[self.at]
            if self.queues.get(client) and self.balance[client] > 0:
                return self.queues[client][0]
        while True:
            self.at += 1
            if self.at >= len(self.ring):  # a new round, with those that arrived in the last
                self.ring += self.joining
                self.joining, self.at = [], 0
            client = self.ring[self.at]
            if self.balance[client] <= 0:
                self.balance[client] += self.quantum
            if self.queues.get(client) and self.balance[client] > 0:
                return self.queues[client][0]


class LiteralLevels:
    """The same by levels: a ring of the outermost nodes, and one below each, by prefixes of ids."""

    def __init__(self, quantum):
        self.quantum, self.rings, self.clients = quantum, {}, {}

    def line(self, client):
        """Return ``(ring, node)`` for each level of a client, outermost first."""
        names = client.split("/")
        for depth in range(len(names)):
            above, node = "/".join(names[:depth]), "/".join(names[: depth + 1])
            yield self.rings.setdefault(above, Literal(self.quantum)), node

    def arrive(self, client, call_id):
        self.clients[call_id] = client
        for ring, node in self.line(client):
            ring.arrive(node, call_id)

    def next(self):
        ring, offered = self.rings.get(""), None
        while ring is not None and (offered := ring.next()) is not None:
            (node,) = (node for above, node in self.line(self.clients[offered]) if above is ring)
            ring = self.rings.get(node)
        return offered

    def take(self, call_id):
        for ring, node in self.line(self.clients[call_id]):
            ring.queues[node].remove(call_id)

    def charge(self, client, cost):
        for ring, node in self.line(client):
            ring.balance[node] -= cost


FLAT = [f"k{number}" for number in range(5)]
TREE = ["a/u", "a/v", "b/u", "c/x/u", "c/x/v", "c/y/u"]


@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 7.0, 50.0, 400.0]),
    st.sampled_from([FLAT, TREE]),
)
def test_drr_equals_rounds_executed_literally(seed, quantum, clients):
    """Offers and balances are equal, with arrivals and decoded tokens between; costs are integers."""
    rng = random.Random(seed)
    drr, literal = Drr(DrrOptions(quantum=quantum)), LiteralLevels(quantum)
    running = {}
    for number in range(120):
        kind = rng.randrange(3)
        if kind == 0:
            client, prompt = rng.choice(clients), rng.randint(1, 60)
            call_id = f"x{number}"
            call = LocalCall(call_id, client, prompt, 1)
            running[call_id] = call
            drr.add(call)
            literal.arrive(client, call_id)
        elif kind == 1:
            drr.start_pass(None)
            for _ in range(rng.randint(1, 4)):
                offered = drr.peek()
                assert (offered and offered.call_id) == literal.next()
                if offered is None:
                    break
                drr.accept(0)
                literal.take(offered.call_id)
                literal.charge(offered.client_id, offered.prompt_tokens)
        else:
            batch = sorted(key for key, entry in drr._entries.items() if not entry.waiting)
            for call_id in rng.sample(batch, min(3, len(batch))):
                drr.decoded(call_id, 2)
                literal.charge(running[call_id].client_id, 4)
                if rng.random() < 0.5:
                    drr.finish(call_id)
        for ring in literal.rings.values():
            for node, balance in ring.balance.items():
                assert drr.balance(node) == balance


@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1.0, 100.0, 1000.0]),
    st.sampled_from([10, 300]),
    st.integers(2, 5),
)
def test_balances_and_service_are_bounded(seed, quantum, longest_prompt, clients):
    """C in (-U, Q], |Wf - Wg| <= 2 (U + 2 Q) while both are backlogged, U = wp * Linput + wq * M."""
    rng = random.Random(seed)
    capacity = 700
    worker = OneWorker(Drr(DrrOptions(quantum=quantum)), capacity)
    most = longest_prompt + 2 * capacity
    names = [f"k{number}" for number in range(clients)]
    for _ in range(60):
        for client in names:
            output = rng.choice([1, 60])
            worker.add(
                client, rng.randint(1, longest_prompt), rng.randint(1, output), longest=output
            )
    difference, checked = {}, 0

    def observe():
        nonlocal checked
        for client in names:
            assert -most <= worker.scheduler.balance(client) <= quantum
        if worker.backlogged() == set(names):
            checked += 1
            for f in names:
                for g in names:
                    now = worker.service[f] - worker.service[g]
                    low, high = difference.get((f, g), (0.0, 0.0))
                    difference[f, g] = min(low, now), max(high, now)

    worker.observe = observe
    for _ in range(150):
        worker.step()
    assert checked
    assert max(high - low for low, high in difference.values()) <= 2 * (most + 2 * quantum)


def test_a_larger_quantum_is_less_fair():
    largest = {}
    for quantum in (1.0, 20_000.0):
        worker = OneWorker(Drr(DrrOptions(quantum=quantum)), 400)
        for _ in range(1500):
            worker.add("f", 20, 10)
            worker.add("g", 20, 10)
        largest[quantum] = 0.0
        for _ in range(900):
            worker.step()
            now = abs(worker.service["f"] - worker.service["g"])
            largest[quantum] = max(largest[quantum], now)
        assert worker.backlogged() == {"f", "g"}
    assert largest[20_000.0] > 10 * largest[1.0]


def test_a_small_quantum_gives_the_schedule_of_vtc(seed):
    """With Q = epsilon, "the algorithms revert to functioning like the VTC algorithm" (paper)."""
    orders = []
    for scheduler in (Vtc(), Drr(DrrOptions(quantum=0.25))):
        rng = random.Random(seed)
        worker = OneWorker(scheduler, 3_000_000)
        for _ in range(100):
            for client in range(5):  # lengths so different that no two clients ever tie
                worker.add(f"k{client}", rng.randint(1, 1_000_000), rng.randint(1, 20))
        for _ in range(120):
            worker.step()
        assert len(worker.backlogged()) == 5
        orders.append(worker.order)
    assert len(orders[0]) > 40
    assert orders[0] == orders[1]


def test_weights_divide_the_service():
    worker = OneWorker(Drr(DrrOptions(quantum=50)), 600)
    rng = random.Random(1)
    for _ in range(500):
        for weight in (1, 2, 4):
            worker.add(f"k{weight}", rng.randint(10, 60), rng.randint(5, 30), weight=weight)
    for _ in range(600):
        worker.step()
    assert len(worker.backlogged()) == 3
    for weight in (2, 4):
        ratio = worker.service[f"k{weight}"] / worker.service["k1"]
        assert ratio == pytest.approx(weight, rel=0.12)


def test_an_idle_client_gains_no_visits():
    """A client with one call at a time, sent again immediately, gets at most one quantum a round."""
    worker = OneWorker(Drr(DrrOptions(quantum=100)), 60)
    for _ in range(200):
        worker.add("steady", 30, 10)
    asked = worker.add("bouncing", 30, 10)
    for _ in range(1500):
        if asked in worker.ended:
            asked = worker.add("bouncing", 30, 10)
        worker.step()
    assert "steady" in worker.backlogged()
    assert worker.service["bouncing"] <= worker.service["steady"] + 2 * (30 + 2 * 60 + 200)


def test_a_preempted_call_is_charged_for_its_prompt_once():
    worker = OneWorker(Drr(DrrOptions(quantum=100)), 1000)
    call_id = worker.add("a", 50, 5)
    worker.step()
    before = worker.scheduler.balance("a")
    worker.preempt(call_id)
    worker.step()
    assert worker.scheduler.balance("a") == before - 2


def test_idle_clients_are_evicted():
    worker = OneWorker(Drr(DrrOptions(quantum=1000)), 10_000)
    for number in range(5000):
        worker.add(f"c{number}", 10, 1)
        worker.step()
    assert len(worker.scheduler._clients) < 2500
    assert len(worker.scheduler._root.heap) < 5000


def test_a_client_with_a_running_call_is_kept():
    worker = OneWorker(Drr(DrrOptions(quantum=1000)), 10_000)
    long = worker.add("long", 10, 4000)
    for number in range(2500):
        worker.add(f"c{number}", 10, 1)
        worker.step()
    before = worker.scheduler.balance("long")
    worker.scheduler.decoded(long, 100)
    assert worker.scheduler.balance("long") == before - 200


def test_invalid_options_are_rejected():
    for quantum in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="quantum is"):
            DrrOptions(quantum=quantum)
    with pytest.raises(ValueError, match="wq is -2"):
        DrrOptions(wq=-2)
