"""Adapted deficit round robin equals rounds executed literally, and keeps its bound."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_worker import OneWorker

from fairserve.benchmarks.policies.drr import Drr, DrrOptions
from fairserve.scheduling.base import LocalCall


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
