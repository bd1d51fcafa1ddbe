"""Published caches of workers determine placement and predicted hits in the dispatcher."""

import json

import pytest
from prefix_trees import blocks_of
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.call import TokenUsage
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.dispatcher import Dispatcher
from fairserve.scheduling.locality.reports import LATE_S
from fairserve.scheduling.registry import SYSTEMS

BLOCK = 16
DOCUMENT = prompt((1, 640))


class Published:
    """A dispatcher with two workers that publish everything, and one call after the other."""

    def __init__(self, system="fairserve"):
        self.dispatcher = Dispatcher(SYSTEMS[system], seed=7)
        self.now_s, self.names = 0.0, 0
        for worker in ("w0", "w1"):
            self.handle(ev.WorkerJoined(worker, 50_000))
            self.handle(ev.WorkerCacheReset(worker, complete=True))

    def handle(self, event):
        return self.dispatcher.handle(event, self.now_s)

    def keys(self, tokens):
        return tuple(self.dispatcher.first.locality._hasher.keys(tokens))

    def call(self, tokens):
        """Send a call; return its worker and the predicted cached tokens."""
        self.names += 1
        name = f"c{self.names}"
        (admitted,) = self.handle(ev.CallArrived(make_call(name, tokens=tokens)))
        return name, admitted.worker_id, self.dispatcher._live[name].cached_tokens

    def end(self, name, outcome="completed"):
        self.handle(ev.CallEnded(name, outcome, TokenUsage(640, 0, 0, 8)))

    def wait(self, seconds):
        self.now_s += seconds
        self.handle(ev.Tick())


@pytest.mark.parametrize("system", ["fairserve", "d2lpm", "cache-aware", "central-dlpm"])
def test_a_call_is_sent_to_the_worker_that_reports_its_prefix(system):
    world = Published(system)
    keys = world.keys(DOCUMENT)
    name, first, _ = world.call(DOCUMENT)
    other = "w1" if first == "w0" else "w0"
    world.handle(ev.WorkerCached(first, None, keys))
    world.end(name)
    name, worker, cached = world.call(DOCUMENT)
    assert (worker, cached) == (first, 639)
    world.end(name)
    world.handle(ev.WorkerEvicted(first, keys[::-1]))
    world.handle(ev.WorkerCached(other, None, keys[:30]))
    world.wait(LATE_S)
    name, worker, cached = world.call(DOCUMENT)
    assert (worker, cached) == (other, 30 * BLOCK)


def test_blocks_of_outputs_are_known():
    """Outputs count: the next turn of a conversation begins with them."""
    world = Published()
    keys = world.keys(prompt((1, 640), (2, 64)))
    name, worker, _ = world.call(DOCUMENT)
    world.handle(ev.WorkerCached(worker, None, keys[:40]))
    world.handle(ev.WorkerCached(worker, keys[39], keys[40:]))
    world.end(name)
    _, again, cached = world.call(prompt((1, 640), (2, 64), (3, 30)))
    assert (again, cached) == (worker, 704)


def test_a_cancelled_call_leaves_no_assumed_blocks():
    world = Published()
    name, worker, _ = world.call(DOCUMENT)
    world.end(name, "cancelled")
    tree = world.dispatcher.first.locality.tree
    world.wait(LATE_S / 2)
    assert blocks_of(tree, worker) == 40
    world.wait(LATE_S / 2)
    assert blocks_of(tree, worker) == 0


def test_a_requeued_call_does_not_count_for_its_first_worker():
    world = Published()
    name, first, _ = world.call(DOCUMENT)
    (admitted,) = world.handle(ev.CallReturned(name))
    assert admitted.worker_id != first
    world.wait(LATE_S)
    tree = world.dispatcher.first.locality.tree
    assert (blocks_of(tree, first), blocks_of(tree, admitted.worker_id)) == (0, 40)


def test_a_cleared_cache_is_empty():
    world = Published()
    name, worker, _ = world.call(DOCUMENT)
    world.handle(ev.WorkerCached(worker, None, world.keys(DOCUMENT)))
    world.end(name)
    world.wait(LATE_S)
    tree = world.dispatcher.first.locality.tree
    assert blocks_of(tree, worker) == 40
    world.handle(ev.WorkerCacheReset(worker, complete=True))
    assert blocks_of(tree, worker) == 0
    assert world.call(DOCUMENT)[2] == 0, "no cached token is predicted_share"


def test_a_lost_worker_starts_with_an_empty_cache():
    world = Published()
    name, worker, _ = world.call(DOCUMENT)
    world.handle(ev.WorkerCached(worker, None, world.keys(DOCUMENT)))
    world.handle(ev.WorkerLost(worker))
    world.handle(ev.WorkerEvicted(worker, world.keys(DOCUMENT)))  # a late event
    world.handle(ev.WorkerJoined(worker, 50_000))
    assert world.dispatcher.first.locality.reports.complete(worker) is None
    world.handle(ev.CallReturned(name))
    tree = world.dispatcher.first.locality.tree
    assert sum(blocks_of(tree, name) for name in ("w0", "w1")) == 40
    world.handle(ev.WorkerDraining(worker))
    world.handle(ev.WorkerCached(worker, None, (1, 2)))
    assert blocks_of(tree, worker) == 2, "it may take calls again"


def test_reports_continue_after_a_change_of_the_system():
    from fairserve.scheduling.dispatch.switch import switch_system

    world = Published()
    name, worker, _ = world.call(DOCUMENT)
    world.handle(ev.WorkerCached(worker, None, world.keys(DOCUMENT)))
    live = world.dispatcher._live[name]
    switch_system(
        world.dispatcher, SYSTEMS["d2lpm"], [(live.call, worker, TokenUsage())], 7, world.now_s
    )
    world.handle(ev.WorkerEvicted(worker, world.keys(DOCUMENT)))
    tree = world.dispatcher.first.locality.tree
    assert blocks_of(tree, worker) == 40, "the call is still there"
    world.end(name)
    world.wait(LATE_S)
    assert blocks_of(tree, worker) == 0


def predicted_share(publishes, seed=0):
    """Return the share of calls with correctly predicted cached tokens, with evicting workers."""
    cluster = VirtualCluster(
        SYSTEMS["fairserve"], workers=2, kv_tokens=4000, publishes=publishes, evict_share=0.5
    )
    handle, seen = cluster.dispatcher.handle, {}

    def watching(event, now_s):
        if isinstance(event, ev.CallStarted):
            believed = cluster.dispatcher._live[event.call_id].cached_tokens
            seen[event.call_id] = believed == event.cached_tokens
        return handle(event, now_s)

    cluster.dispatcher.handle = watching
    for number in range(400):
        tokens = prompt((100 + (number * 7 + seed) % 11, 320), (1000 + number, 16))
        cluster.at(number * 0.1, make_call(f"c{number}", user=f"u{number % 5}", tokens=tokens))
    cluster.run(200)
    assert len(seen) == 400
    json.dumps(cluster.dispatcher.snapshot(200.0))
    return sum(seen.values()) / len(seen)


def test_reports_improve_the_prediction():
    assert predicted_share(publishes=True) > 0.97
    assert predicted_share(publishes=False) < 0.8
