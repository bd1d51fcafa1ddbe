"""Rankings and lanes find the call that a scan finds, whatever happens to the counters."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fairserve.interactions.call import Restriction
from fairserve.scheduling.fairness.counters import VirtualCounters
from fairserve.scheduling.fairness.lanes import Lanes
from fairserve.scheduling.fairness.ranking import FEW, Ranking

PATHS = [
    *((tenant, user) for tenant in "abc" for user in "uvwx"),
    ("d",),
    ("a", "app", "u"),
    ("a", "u", "z"),  # its prefix is a client, too
]
GPU, NPU, ANY = (Restriction(frozenset(kinds)) for kinds in (["gpu"], ["npu"], []))


class Queue:
    """Queued and running calls of some counters, and the same calls in rankings and lanes."""

    def __init__(self, rng):
        self.rng = rng
        self.counters = VirtualCounters()
        falls = self.counters.record_falls()
        self.rankings = [Ranking(falls) for _ in range(3)]
        for ranking, few in zip(self.rankings, (0, 3, FEW), strict=True):
            ranking.few = few
        self.lanes = Lanes(falls, self.counters.root)
        self.queued, self.running = {}, {}
        self.arrivals = 0

    def arrive(self):
        self.arrivals += 1
        self.enter(f"c{self.arrivals}", self.rng.choice(PATHS), self.arrivals)

    def enter(self, call_id, path, arrival):
        node = self.counters.arrive(path, arrival)
        restriction = self.rng.choice([GPU, NPU, ANY])
        part = [ranking for ranking in self.rankings if self.rng.random() < 0.5]
        for ranking in part:
            ranking.add(node, arrival, call_id)
        self.lanes.add(restriction, node, arrival, call_id)
        self.queued[call_id] = node, arrival, restriction, part

    def take(self):
        call_id = self.rng.choice(list(self.queued))
        node, arrival, restriction, part = self.queued.pop(call_id)
        for ranking in part:
            ranking.discard(node, arrival, call_id)
        self.lanes.discard(restriction, node, arrival, call_id)
        left = [other[1] for other in self.queued.values() if other[0] is node]
        return call_id, node, arrival, min(left, default=None)

    def dispatch(self):
        call_id, node, arrival, following = self.take()
        self.counters.dispatch(node, following, upcoming=False)
        reserved = self.rng.choice([0.0, 1.0, 5.0])
        self.counters.reserve(node, reserved) if reserved else None
        self.running[call_id] = [node, arrival, reserved]

    def leave(self):
        _, node, _, following = self.take()
        self.counters.leave(node, following)

    def end(self):
        call_id = self.rng.choice(list(self.running))
        node, arrival, reserved = self.running.pop(call_id)
        fate = self.rng.random()
        if fate < 0.4:
            self.counters.realise(node, reserved / 2)
            self.counters.release(node, reserved / 2)
        elif fate < 0.8:
            self.counters.release(node, reserved)
            self.counters.charge(node, self.rng.choice([0.0, 1.0, 2.0]))
        else:
            self.counters.release(node, reserved)
            self.counters.refund(node, 1.0)
        self.counters.done(node)
        if fate > 0.9:
            self.enter(call_id, node.path, arrival)

    def elsewhere(self):
        self.counters.charge_elsewhere(
            self.rng.choice(PATHS), self.rng.choice([-2.0, 0.0, 3.0]), self.rng.choice([-1.0, 1.0])
        )

    def step(self):
        actions = [self.arrive, self.elsewhere]
        actions += [self.dispatch, self.leave] if self.queued else [self.arrive]
        self.rng.choice(actions + [self.end] * 2 if self.running else actions)()


def value(node):
    return node.served + node.reserved


def first_of(queue, ranking, within):
    calls = [
        (counters, arrival, call_id)
        for call_id, (node, arrival, _, part) in queue.queued.items()
        if ranking in part and (counters := within(node)) is not None
    ]
    return min(calls, default=None)


def first_without(queue, excluded):
    """Return the earliest call of the least served client, level by level, without some lanes."""
    found = [(n, a, name) for name, (n, a, r, _) in queue.queued.items() if r not in excluded]
    depth = 0
    while True:
        below = {}
        for node, arrival, call_id in found:
            below.setdefault(node.line[depth], []).append((node, arrival, call_id))
        child = min(below, key=lambda c: (value(c), min(a for _, a, _ in below[c]), c.name))
        found, depth = below[child], depth + 1
        if child.line:
            return min(found, key=lambda call: call[1])[2]


@given(st.integers(0, 2**32))
def test_the_first_call_is_that_of_a_scan(seed):
    rng = random.Random(seed)
    queue = Queue(rng)
    for _ in range(120):
        queue.step()
        if not queue.queued:
            continue
        ranking = rng.choice(queue.rankings)  # the others catch up later
        within = queue.counters.reach(rng.choice([0.0, 2.0, 100.0]))
        assert ranking.first(within) == first_of(queue, ranking, within)
        excluded = set(rng.sample([GPU, NPU, ANY], rng.randint(0, 2)))
        lanes = queue.lanes.without(excluded)
        assert bool(lanes) == any(call[2] not in excluded for call in queue.queued.values())
        if lanes:
            assert lanes.first() == first_without(queue, excluded)


@given(st.integers(0, 2**32))
def test_nothing_is_kept_of_clients_that_have_left(seed):
    queue = Queue(random.Random(seed))
    for _ in range(60):
        queue.step()
    while queue.queued:
        queue.leave()
    for ranking in queue.rankings:
        assert not any((ranking._calls, ranking._levels))
    assert not queue.lanes._lanes
    assert not list(queue.counters.root.falls.since(0))
