"""Workers that tell of their caches, through the dispatcher: where calls go, and what is foreseen."""

import json

import pytest
from prefix_trees import blocks_of
from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.interactions.call import TokenUsage
from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatcher import Dispatcher
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.reports import LATE_S

BLOCK = 16
DOCUMENT = prompt((1, 640))


class Told:
    """A dispatcher with two workers that tell everything, and one call after the other."""

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
        """Sent somewhere; its worker and the cached tokens that were foreseen."""
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
def test_a_call_goes_to_the_worker_that_really_has_its_prefix(system):
    told = Told(system)
    keys = told.keys(DOCUMENT)
    name, first, _ = told.call(DOCUMENT)
    other = "w1" if first == "w0" else "w0"
    told.handle(ev.WorkerCached(first, None, keys))
    told.end(name)
    name, worker, cached = told.call(DOCUMENT)
    assert (worker, cached) == (first, 639)
    told.end(name)
    told.handle(ev.WorkerEvicted(first, keys[::-1]))
    told.handle(ev.WorkerCached(other, None, keys[:30]))
    told.wait(LATE_S)
    name, worker, cached = told.call(DOCUMENT)
    assert (worker, cached) == (other, 30 * BLOCK)


def test_what_a_worker_computed_of_itself_is_known():
    """Its outputs: the next turn of a conversation begins with them."""
    told = Told()
    keys = told.keys(prompt((1, 640), (2, 64)))
    name, worker, _ = told.call(DOCUMENT)
    told.handle(ev.WorkerCached(worker, None, keys[:40]))
    told.handle(ev.WorkerCached(worker, keys[39], keys[40:]))
    told.end(name)
    _, again, cached = told.call(prompt((1, 640), (2, 64), (3, 30)))
    assert (again, cached) == (worker, 704)


def test_a_cancelled_call_leaves_no_belief_behind():
    told = Told()
    name, worker, _ = told.call(DOCUMENT)
    told.end(name, "cancelled")
    tree = told.dispatcher.first.locality.tree
    told.wait(LATE_S / 2)
    assert blocks_of(tree, worker) == 40
    told.wait(LATE_S / 2)
    assert blocks_of(tree, worker) == 0


def test_a_returned_call_does_not_count_for_its_first_worker():
    told = Told()
    name, first, _ = told.call(DOCUMENT)
    (admitted,) = told.handle(ev.CallReturned(name))
    assert admitted.worker_id != first
    told.wait(LATE_S)
    tree = told.dispatcher.first.locality.tree
    assert (blocks_of(tree, first), blocks_of(tree, admitted.worker_id)) == (0, 40)


def test_a_worker_that_has_cleared_its_cache_holds_nothing():
    told = Told()
    name, worker, _ = told.call(DOCUMENT)
    told.handle(ev.WorkerCached(worker, None, told.keys(DOCUMENT)))
    told.end(name)
    told.wait(LATE_S)
    tree = told.dispatcher.first.locality.tree
    assert blocks_of(tree, worker) == 40
    told.handle(ev.WorkerCacheReset(worker, complete=True))
    assert blocks_of(tree, worker) == 0
    assert told.call(DOCUMENT)[2] == 0, "no cached token is foreseen"


def test_a_lost_worker_begins_anew():
    told = Told()
    name, worker, _ = told.call(DOCUMENT)
    told.handle(ev.WorkerCached(worker, None, told.keys(DOCUMENT)))
    told.handle(ev.WorkerLost(worker))
    told.handle(ev.WorkerEvicted(worker, told.keys(DOCUMENT)))  # late
    told.handle(ev.WorkerJoined(worker, 50_000))
    assert told.dispatcher.first.locality.reports.complete(worker) is None
    told.handle(ev.CallReturned(name))
    tree = told.dispatcher.first.locality.tree
    assert sum(blocks_of(tree, name) for name in ("w0", "w1")) == 40
    told.handle(ev.WorkerDraining(worker))
    told.handle(ev.WorkerCached(worker, None, (1, 2)))
    assert blocks_of(tree, worker) == 2, "it may take calls again"


def test_the_system_changes_and_reports_go_on():
    from fairserve.platform.control.switch import switch_system

    told = Told()
    name, worker, _ = told.call(DOCUMENT)
    told.handle(ev.WorkerCached(worker, None, told.keys(DOCUMENT)))
    live = told.dispatcher._live[name]
    switch_system(
        told.dispatcher, SYSTEMS["d2lpm"], [(live.call, worker, TokenUsage())], 7, told.now_s
    )
    told.handle(ev.WorkerEvicted(worker, told.keys(DOCUMENT)))
    tree = told.dispatcher.first.locality.tree
    assert blocks_of(tree, worker) == 40, "the call is still there"
    told.end(name)
    told.wait(LATE_S)
    assert blocks_of(tree, worker) == 0


def foreseen(publishes, seed=0):
    """Of the calls of a cluster whose workers evict: the share with the cached tokens as foreseen."""
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


def test_more_is_foreseen_with_reports():
    assert foreseen(publishes=True) > 0.97
    assert foreseen(publishes=False) < 0.8
