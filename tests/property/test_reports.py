"""The router's view of a worker that publishes its cache finally equals the worker's real cache.

The worker's events are delayed; calls are placed, computed, cancelled and evicted in the meantime.
"""

import json
import random
from array import array
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from fairserve.scheduling.events import WorkerCached, WorkerCacheReset, WorkerEvicted
from fairserve.scheduling.locality.prefix_tree import PrefixTree
from fairserve.scheduling.locality.reports import LATE_S, Reports

CAPACITY = 40
OTHER = "other"


def keys_of(path):
    """Return chained keys, equal for equal prefixes."""
    return array("Q", [hash(tuple(path[: n + 1])) % 2**64 for n in range(len(path))])


class World:
    """One worker that publishes everything, one that publishes nothing and shares its prompts."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.tree = PrefixTree()
        self.reports = Reports(self.tree)
        for name in ("w", OTHER):
            self.tree.add_worker(name, CAPACITY)
            self.reports.add_worker(name, CAPACITY)
        self.now_s = 0.0
        self.cached = {}
        """Prefix -> calls that compute with it at present; the real content of the worker."""
        self.queued, self.running, self.prompts = {}, {}, {}
        self.events = deque()
        self.names = 0

    def place(self):
        path = tuple(self.rng.randrange(3) for _ in range(self.rng.randint(0, 6)))
        self.names += 1
        name, keys = f"c{self.names}", keys_of(path)
        self.prompts[name] = keys
        self.tree.insert(keys, "w")
        self.reports.placed(name, "w", keys)
        self.queued[name] = path
        if self.rng.random() < 0.3:
            self.tree.insert(keys, OTHER)
            self.reports.placed(name, OTHER, keys)
            self.reports.left(name, OTHER, self.now_s)

    def compute(self):
        name = self.rng.choice(list(self.queued))
        path = self.running[name] = self.queued.pop(name)
        for end in range(1, len(path) + 1):
            self.store(path[:end], name)

    def store(self, prefix, holder=None):
        if prefix not in self.cached:
            while len(self.cached) >= CAPACITY:
                self.evict()
            self.cached[prefix] = set()
            keys = keys_of(prefix)
            parent = keys[-2] if len(keys) > 1 else None
            self.events.append(WorkerCached("w", parent, (keys[-1],)))
        if holder is not None:
            self.cached[prefix].add(holder)

    def evict(self):
        parents = {prefix[:-1] for prefix in self.cached}
        idle = [p for p, holders in self.cached.items() if not holders and p not in parents]
        if idle:
            prefix = self.rng.choice(idle)
            del self.cached[prefix]
            self.events.append(WorkerEvicted("w", (keys_of(prefix)[-1],)))
        return bool(idle)

    def end(self):
        """End a call: computed, with some cached output, or cancelled before."""
        name = self.rng.choice([*self.queued, *self.running])
        path = self.running.pop(name, None)
        if path is None:
            del self.queued[name]
        else:
            for end in range(1, len(path) + 1):
                self.cached[path[:end]].discard(name)
            if len(self.cached) < CAPACITY:
                self.store((*path, 7))
        self.reports.left(name, "w", self.now_s)

    def reset(self, complete):
        """Lose events: everything is published again, or never."""
        self.events.clear()
        self.reports.take(WorkerCacheReset("w", complete))
        if complete:
            for prefix in sorted(self.cached, key=len):
                keys = keys_of(prefix)
                parent = keys[-2] if len(keys) > 1 else None
                self.events.append(WorkerCached("w", parent, (keys[-1],)))

    def receive(self):
        if self.events:
            self.reports.take(self.events.popleft())

    def wait(self, seconds):
        self.now_s += seconds
        self.reports.settle(self.now_s)

    def view(self, worker="w"):
        bit = self.tree.mask([worker])
        return {
            k for node in self.tree._segments.heads.values() if node.mask & bit for k in node.keys
        }

    def truth(self):
        return {keys_of(prefix)[-1] for prefix in self.cached}

    def check(self):
        mask = self.tree.mask(["w"])
        for name in (*self.queued, *self.running):
            keys = self.prompts[name]
            assert self.tree.match(keys, mask)[0] == len(keys), "a call will have its prompt there"
        if self.reports.complete("w"):
            cache = self.reports._caches["w"]
            paths = [*cache.there.values(), *(keys for _, keys in cache.left)]
            assert self.view() <= cache.held.union(*paths)
        locked = {key for link in self.tree._caches[0] if link.locks for key in link.node.keys}
        assert self.tree.locked_blocks("w") == len(locked)

    def act(self, action):
        if action == "place" and len(self.queued) + len(self.running) < 6:
            self.place()
        elif action == "compute" and self.queued:
            self.compute()
        elif action == "evict":
            self.evict()
        elif action == "end" and self.queued | self.running:
            self.end()
        elif action == "receive":
            self.receive()
        elif action == "wait":
            self.wait(self.rng.choice([0.125, 0.5, LATE_S]))


ACTIONS = ["place"] * 4 + ["compute"] * 4 + ["evict"] * 3 + ["end"] * 3 + ["receive"] * 6 + ["wait"]


@given(st.integers(0, 2**32))
def test_the_view_finally_equals_the_cache(seed):
    world = World(seed)
    world.reset(complete=True)
    for _ in range(200):
        world.act(world.rng.choice(ACTIONS))
        if world.rng.random() < 0.02:
            world.reset(complete=True)
        world.check()
    while world.queued or world.running:
        world.end()
    world.wait(LATE_S)
    while world.events:
        world.receive()
    world.wait(LATE_S)
    world.check()
    assert world.view() == world.truth()
    assert world.tree.locked_blocks("w") == 0


@given(st.integers(0, 2**32), st.integers(0, 120))
def test_the_view_survives_changes_of_publishing(seed, begins):
    """A worker starts to publish while calls run, loses events for good, and publishes all again."""
    world = World(seed)
    for step in range(240):
        world.act(world.rng.choice(ACTIONS))
        if step == begins or world.rng.random() < 0.03:
            world.reset(complete=world.rng.random() < 0.5)
        if step >= begins:
            world.check()
        assert len(world.view()) <= 2 * CAPACITY
        assert len(world.view(OTHER)) <= CAPACITY
    while world.queued or world.running:
        world.end()
    world.reset(complete=True)
    while world.events:
        world.receive()
    world.wait(LATE_S)
    assert world.view() == world.truth()


@given(st.integers(0, 2**32), st.integers(0, 150))
def test_a_restored_snapshot_continues_as_the_original(seed, cut):
    one, two = World(seed), World(seed)
    for world in (one, two):
        world.reset(complete=True)
    for step in range(150):
        action = one.rng.choice(ACTIONS)
        assert two.rng.choice(ACTIONS) == action
        if step == cut:
            state = json.loads(json.dumps([two.tree.snapshot(), two.reports.snapshot(two.now_s)]))
            two.tree.restore(state[0])
            two.now_s += 1000.0
            for left in two.reports._caches["w"].left:
                assert left[0] <= one.now_s
            two.reports.restore(state[1], two.prompts.__getitem__, two.now_s)
        for world in (one, two):
            world.act(action)
        assert one.tree.snapshot() == two.tree.snapshot()
        assert one.view() == two.view()


def test_a_worker_that_publishes_nothing_is_assumed_to_cache_its_calls():
    world = World(0)
    for number in range(30):
        world.tree.insert(keys_of((number, 1, 2)), "w")
        world.reports.placed(f"c{number}", "w", keys_of((number, 1, 2)))
        world.reports.left(f"c{number}", "w", 0.0)
    world.wait(10 * LATE_S)
    assert world.reports.complete("w") is None
    assert len(world.view()) == CAPACITY
    assert world.tree.locked_blocks("w") == 0


def test_events_of_unknown_workers_are_ignored():
    world = World(0)
    world.reports.remove_worker("w")
    for event in (
        WorkerCached("w", None, (1,)), WorkerEvicted("w", (1,)), WorkerCacheReset("w", True)
    ):  # fmt: skip
        world.reports.take(event)
    world.reports.placed("c", "w", keys_of((1,)))
    world.reports.left("c", "w", 0.0)
    assert world.view() == set()


def test_an_older_eviction_keeps_blocks_of_a_waiting_call():
    world = World(0)
    world.reset(complete=True)
    keys = keys_of((1, 2, 3))
    world.reports.take(WorkerCached("w", None, tuple(keys)))
    world.tree.insert(keys, "w")
    world.reports.placed("c", "w", keys)
    world.reports.take(WorkerEvicted("w", (keys[2], keys[1])))
    assert world.view() == set(keys)
    world.reports.left("c", "w", 0.0)
    world.wait(LATE_S / 2)
    assert world.view() == set(keys), "that it computed them may be reported yet"
    world.wait(LATE_S / 2)
    assert world.view() == {keys[0]}, "it was cancelled before"


def test_blocks_that_no_call_needs_may_be_evicted():
    """A block follows its prompt in the same node of the tree, and may be evicted."""
    world = World(0)
    world.reset(complete=True)
    keys = keys_of((1, 2, 3, 4))
    world.reports.take(WorkerCached("w", None, tuple(keys)))
    world.tree.insert(keys[:2], "w")
    world.reports.placed("c", "w", keys[:2])
    world.reports.take(WorkerEvicted("w", (keys[3], keys[2], keys[1])))
    assert world.view() == set(keys[:2])
