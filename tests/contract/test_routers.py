"""Every router chooses open workers only, is deterministic, keeps its state, and is bounded."""

import json
import random

import pytest
from virtual_cluster import make_call, prompt

from fairserve.benchmarks.policies.preble import Preble
from fairserve.benchmarks.policies.preble_options import PrebleOptions
from fairserve.scheduling import registry
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.cache_aware import CacheAware, CacheAwareOptions
from fairserve.scheduling.routers.d2lpm import D2lpm
from fairserve.scheduling.routers.d2lpm_options import D2lpmOptions
from fairserve.scheduling.routers.least_loaded import LeastLoaded
from fairserve.scheduling.routers.round_robin import RoundRobin, RoundRobinOptions

ROUTERS = {
    "least_loaded": LeastLoaded,
    "round_robin": lambda locality: RoundRobin(),
    "round_robin_per_client": lambda locality: RoundRobin(
        RoundRobinOptions(per_client=True, max_clients=1000)
    ),
    "cache_aware": CacheAware,
    "cache_aware_tight": lambda locality: CacheAware(
        locality, CacheAwareOptions(match_threshold=0.0, balance_abs=2, balance_rel=1.0)
    ),
    "preble": lambda locality: Preble(
        locality, PrebleOptions(window_s=2.0, window_calls=300, rebalance_after=5)
    ),
    "d2lpm": lambda locality: D2lpm(locality, D2lpmOptions(quantum=800.0)),
    "d2lpm_mean": D2lpm,
}
NAMES = list(ROUTERS)
WORKERS = ["w0", "w1", "w2", "w3"]


class Cluster:
    """A router and the dispatcher's events, without queues: calls are placed on arrival."""

    def __init__(self, name, workers=WORKERS):
        self.name = name
        self.locality = Locality(seed=3)
        self.router = ROUTERS[name](self.locality)
        self.workers, self.draining = [], []
        self.lives = dict.fromkeys(WORKERS, 0)
        self.running = []  # (call, worker, generation of the worker)
        self.now_s = 0.0
        for worker in workers:
            self.join(worker)

    def join(self, worker):
        self.workers.append(worker)
        self.lives[worker] = self.lives.get(worker, 0) + 1
        self.locality.add_worker(worker, 4000)
        self.router.add_worker(worker)

    def leave(self, worker):
        """Lose a worker."""
        self.drain(worker)
        self.draining.remove(worker)
        self.locality.remove_worker(worker)

    def drain(self, worker):
        self.workers.remove(worker)
        self.draining.append(worker)
        self.router.remove_worker(worker)

    def undrain(self, worker):
        self.draining.remove(worker)
        self.workers.append(worker)
        life = self.lives[worker]
        calls = sum((there, its) == (worker, life) for _, there, its in self.running)
        self.router.add_worker(worker, calls)

    def tick(self, seconds):
        self.now_s += seconds
        if hasattr(self.router, "tick"):
            self.router.tick(self.now_s)

    def place(self, call, open_workers):
        self.locality.register(call)
        worker = self.router.select(call, open_workers)
        if worker is not None:
            self.router.dispatched(call, worker, 1.0)
            self.locality.placed(call, worker)
            if hasattr(self.router, "started"):
                self.router.started(call.call_id)
            self.running.append((call, worker, self.lives[worker]))
        return worker

    def finish(self, number, output):
        call, worker, life = self.running.pop(number)
        here = worker in self.workers + self.draining and self.lives[worker] == life
        self.router.finished(call, worker if here else None, 1.0, output)
        self.locality.forget(call.call_id)

    def state(self):
        return {
            "router": self.router.snapshot(),
            "locality": self.locality.snapshot(0.0),
            "workers": self.workers,
            "draining": self.draining,
        }

    def restored(self):
        """Return another cluster with the state of this one, restored from JSON."""
        other = Cluster(self.name, [])
        state = json.loads(json.dumps(self.state()))
        other.locality.restore(state["locality"], [call for call, _, _ in self.running], 0.0)
        other.router.restore(state["router"])
        other.workers, other.draining = state["workers"], state["draining"]
        other.lives = dict(self.lives)
        other.running, other.now_s = list(self.running), self.now_s
        other.tick(0.0)
        return other


def history(seed, steps=300):
    """Return events without decisions: shared prompts, closed workers, joins, losses, drains."""
    rng = random.Random(seed)
    for number in range(steps):
        kind = rng.random()
        if kind < 0.6:
            tokens = prompt(
                (rng.randrange(6), 16 * rng.randrange(20)), (number, rng.randint(1, 90))
            )
            call = make_call(f"c{number}", user=f"u{rng.randrange(5)}", tokens=tokens)
            yield "call", call, {worker for worker in WORKERS if rng.random() < 0.7}
        elif kind < 0.9:
            yield "finish", rng.random(), rng.randint(0, 60)
        elif kind < 0.96:
            yield "tick", rng.random(), None
        else:
            yield "membership", rng.choice(WORKERS), rng.choice(["lost", "drained"])


def apply(cluster, event):
    """Apply an event; return the router's decision, None for other events."""
    kind, first, second = event
    if kind == "call":
        return cluster.place(first, second)
    if kind == "finish" and cluster.running:
        cluster.finish(int(first * len(cluster.running)), second)
    elif kind == "tick":
        cluster.tick(first)
    elif kind == "membership":
        if first in cluster.draining:
            cluster.undrain(first)
        elif first in cluster.workers and second == "drained":
            cluster.drain(first)
        elif first in cluster.workers:
            cluster.leave(first)
        else:
            cluster.join(first)
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_known_open_worker_is_chosen_if_there_is_one(name, seed):
    cluster = Cluster(name)
    calls = 0
    for event in history(seed):
        known = set(cluster.workers)
        chosen = apply(cluster, event)
        if event[0] == "call":
            usable = known & event[2]
            assert chosen in usable if usable else chosen is None
            calls += 1
    assert calls > 100


@pytest.mark.parametrize("name", NAMES)
def test_equal_history_gives_equal_decisions(name):
    first, second = Cluster(name), Cluster(name)
    for event in history(7):
        assert apply(first, event) == apply(second, event)
    assert first.state() == second.state()


@pytest.mark.parametrize("name", NAMES)
def test_reading_credits_changes_nothing(name):
    first, second = Cluster(name), Cluster(name)
    paths = [("t",), *(("t", f"u{number}") for number in range(6)), ("nobody",), ()]
    in_credit = 0
    for event in history(9):
        before = first.state()
        credits = [first.router.credits(path) for path in paths]
        assert first.state() == before
        assert all(found.keys() <= set(first.workers) for found in credits)
        assert apply(first, event) == apply(second, event)
        in_credit += any(credits)
    assert first.state() == second.state()
    assert bool(in_credit) == name.startswith("d2lpm")


def test_every_router_is_covered():
    for name in registry.ROUTERS:
        assert any(each.startswith(name) for each in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_open_workers_does_not_matter(name):
    first, second = Cluster(name), Cluster(name)
    for kind, one, two in history(8):
        same = (kind, one, sorted(two) if kind == "call" else two)
        reverse = (kind, one, sorted(two, reverse=True) if kind == "call" else two)
        assert apply(first, same) == apply(second, reverse)


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_snapshot_gives_the_same_decisions(name, seed):
    cluster, restored = Cluster(name), None
    cluster.tick(0.0)
    events = list(history(seed, 400))
    cut = random.Random(seed).randrange(50, 300)
    for number, event in enumerate(events):
        if number == cut:
            restored = cluster.restored()
            assert restored.state() == json.loads(json.dumps(cluster.state()))
        expected = apply(cluster, event)
        if restored is not None:
            assert apply(restored, event) == expected
    assert restored.state() == json.loads(json.dumps(cluster.state()))


def in_use(name, state):
    """Return every count of outstanding calls in a router's snapshot."""
    if name == "preble":
        return [*state["running"], *(node[-1] for node in state["tree"]["nodes"] if node[-1])]
    return [*filter(None, state.get("loads", {}).values()), *state.get("outstanding", {})]


@pytest.mark.parametrize("name", NAMES)
def test_counts_return_to_zero(name, seed):
    cluster = Cluster(name)
    seen = False
    for event in history(seed):
        apply(cluster, event)
        seen = seen or bool(in_use(name, cluster.router.snapshot()))
    assert seen or "round_robin" in name
    while cluster.running:
        cluster.finish(0, 5)
    assert not in_use(name, cluster.router.snapshot())


@pytest.mark.parametrize("name", NAMES)
def test_a_returning_worker_starts_empty_and_gets_calls(name):
    cluster = Cluster(name, ["w0", "w1"])
    for number in range(20):
        cluster.place(make_call(f"a{number}"), ["w0", "w1"])
    cluster.leave("w1")
    for number in range(20):
        assert cluster.place(make_call(f"b{number}"), ["w0", "w1"]) == "w0"
    cluster.join("w1")
    while cluster.running:  # including those of its first generation: it no longer owns them
        cluster.finish(0, 3)
    assert not in_use(name, cluster.router.snapshot())
    placed = [cluster.place(make_call(f"d{number}"), ["w0", "w1"]) for number in range(20)]
    assert set(placed) == {"w0", "w1"}


@pytest.mark.parametrize("name", NAMES)
def test_an_undrained_worker_keeps_its_calls(name):
    cluster = Cluster(name, ["w0", "w1"])
    for number in range(20):
        cluster.place(make_call(f"a{number}"), [f"w{number % 2}"])
    cluster.drain("w1")
    for number in range(20):
        assert cluster.place(make_call(f"b{number}"), ["w0", "w1"]) == "w0"
    for _ in range(10):
        cluster.finish(0, 3)
    cluster.undrain("w1")
    while cluster.running:
        cluster.finish(0, 3)
    assert not in_use(name, cluster.router.snapshot())
    placed = [cluster.place(make_call(f"d{number}"), ["w0", "w1"]) for number in range(20)]
    assert set(placed) == {"w0", "w1"}


@pytest.mark.parametrize("name", NAMES)
def test_a_requeued_call_may_be_dispatched_again(name):
    cluster = Cluster(name)
    call = make_call("a")
    first = cluster.place(call, WORKERS)
    cluster.running.clear()
    cluster.router.finished(call, first, 1.0, 0)
    others = [worker for worker in WORKERS if worker != first]
    assert cluster.place(call, others) in others
    cluster.finish(0, 3)
    assert not in_use(name, cluster.router.snapshot())


@pytest.mark.parametrize("name", NAMES)
def test_state_is_bounded_for_many_clients(name):
    """4,000 clients make one call each; few run at once."""
    cluster = Cluster(name)
    for number in range(4000):
        call = make_call(f"c{number}", user=f"u{number}", tokens=prompt((number % 7, 20)))
        cluster.place(call, WORKERS)
        if len(cluster.running) > 8:
            cluster.finish(0, 1)
    state = json.dumps(cluster.router.snapshot())
    assert state.count('"t/u') <= 3 * 1024
    assert len(state) < 400_000


@pytest.mark.parametrize("name", NAMES)
def test_unknown_workers_are_rejected(name):
    cluster = Cluster(name, ["w0"])
    call = make_call("a")
    cluster.locality.register(call)
    assert cluster.router.select(call, ["nobody"]) is None
    assert cluster.router.select(call, []) is None
    before = cluster.router.snapshot()
    with pytest.raises(KeyError):
        cluster.router.dispatched(call, "nobody", 1.0)
    with pytest.raises(ValueError, match="'w0' is known already"):
        cluster.router.add_worker("w0")
    cluster.router.remove_worker("nobody")
    assert cluster.place(call, ["nobody", "w0"]) == "w0"
    cluster.router.remove_worker("w0")
    cluster.router.finished(call, "w0", 1.0, 2)
    cluster.router.add_worker("w0")
    if not name.startswith(("round_robin", "d2lpm", "preble")):
        assert cluster.router.snapshot() == before
