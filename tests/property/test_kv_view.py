"""KV events give a view of a worker's cache, through lost batches, broken connections and restarts.

Finally the view equals the worker's cache, or a part of it where events are lost for good.
"""

import hashlib
import random
from array import array
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairserve.engine.kv_events import dialect
from fairserve.engine.kv_events.dialect import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvBatch,
)
from fairserve.engine.kv_events.replay import ReplayBuffer
from fairserve.engine.kv_events.sequence import Ask, Begin, KvSequence
from fairserve.engine.kv_events.union import KvUnion
from fairserve.engine.kv_events.view import KvView
from fairserve.scheduling.events import WorkerCached, WorkerCacheReset
from fairserve.scheduling.locality.block_keys import BlockHasher
from fairserve.scheduling.locality.prefix_tree import PrefixTree
from fairserve.scheduling.locality.reports import Reports

OURS = 4
CAPACITY = 64
HASHER = BlockHasher(7, OURS)


class ForgetfulBuffer:
    """A replay buffer like vLLM's: only the last batches."""

    def __init__(self, steps):
        self._batches = deque(maxlen=steps)

    def append(self, sequence, payload):
        self._batches.append((sequence, payload))

    def since(self, start):
        return [batch for batch in self._batches if batch[0] >= start]


class Worker:
    """A trie of blocks by name, and the batches about it. ``generation`` makes its names unique."""

    def __init__(self, size, buffer, rng):
        self.size, self.buffer, self.rng = size, buffer, rng
        self.generation, self.sequence = 0, 0
        self.cached = {}
        """Name -> (parent, salt, all tokens up to its end)."""
        self.events = []

    def name(self, salt, tokens):
        return int.from_bytes(hashlib.sha256(f"{salt}{tokens}".encode()).digest()[:8], "big")

    def store(self, salt, blocks):
        """Store a prompt of single-valued blocks; its uncached part is published in one event."""
        tokens, parent, new = (), None, []
        for block in blocks:
            tokens += (block,) * self.size
            name = self.name(salt, tokens)
            if name not in self.cached:
                if len(self.cached) * self.size >= CAPACITY:
                    break
                self.cached[name] = (parent, salt, tokens)
                new.append((name, parent, tokens[-self.size :]))
            parent = name
        if new:
            first = new[0][1] is None and salt
            self.events.append(
                BlockStored(
                    [name for name, _, _ in new],
                    new[0][1],
                    [token for _, _, part in new for token in part],
                    self.size,
                    medium="GPU",
                    extra_keys=[[salt], *[None] * (len(new) - 1)] if first else None,
                )
            )

    def leaves(self):
        parents = {parent for parent, _, _ in self.cached.values()}
        return [name for name in self.cached if name not in parents]

    def evict(self, names):
        for name in names:
            del self.cached[name]
        if names:
            self.events.append(BlockRemoved(names, "GPU"))

    def clear(self):
        self.cached.clear()
        self.events.append(AllBlocksCleared())

    def step(self):
        """Publish the changes of the cache; return the frames, or None."""
        if not self.events:
            return None
        payload = dialect.encode(KvBatch(self.generation + self.sequence / 1000, self.events))
        sequence, self.events = self.sequence, []
        self.sequence += 1
        self.buffer.append(sequence, payload)
        return sequence, payload

    def restart(self, buffer):
        self.generation, self.sequence, self.buffer = self.generation + 1, 0, buffer
        self.cached, self.events = {}, []

    def keys(self):
        """Return the platform's keys of all cached blocks, for each whole block of the router."""
        keys = set()
        for _, salt, tokens in self.cached.values():
            keys.update(HASHER.keys(np.array(tokens, dtype=np.uint32), salt))
        return keys


class Reader:
    """Everything between the wire and the router's tree, without a socket."""

    def __init__(self, worker):
        self.worker, self.rng = worker, worker.rng
        self.sequence = KvSequence(max_waiting=50)
        self.view = KvView("w", HASHER, CAPACITY)
        self.tree = PrefixTree()
        self.tree.add_worker("w", CAPACITY // OURS)
        self.reports = Reports(self.tree)
        self.reports.add_worker("w", CAPACITY // OURS)
        self.post = self.reports.take
        self.complete = None
        self.wire = deque()
        self.asked, self.answers = None, deque()
        self.connected = False

    def connect(self):
        self.connected = True
        self.do(self.sequence.connected())

    def disconnect(self):
        """Lose the messages in transit."""
        self.connected = False
        self.wire.clear()
        self.answers.clear()
        self.asked = None

    def published(self, batch, lost):
        if batch is not None and self.connected and not lost:
            self.wire.append(batch)

    def serve(self):
        """Answer the last replay request."""
        if self.connected and self.asked is not None:
            self.answers = deque([*self.worker.buffer.since(self.asked), (dialect.END, b"")])
            self.asked = None

    def read(self, replay):
        if replay and self.answers:
            sequence, payload = self.answers.popleft()
            if sequence == dialect.END:
                self.do(self.sequence.ended())
            else:
                self.do(self.sequence.replayed(sequence, payload))
        elif self.wire:
            self.do(self.sequence.live(*self.wire.popleft()))

    def do(self, steps):
        for step in steps:
            if isinstance(step, Ask):
                self.asked, self.answers = step.start, deque()
            else:
                reports = (
                    self.view.begin(complete=step.complete)
                    if isinstance(step, Begin)
                    else self.view.apply(dialect.decode(step.payload).events)
                )
                for report in reports:
                    if isinstance(report, WorkerCacheReset):
                        self.complete = report.complete
                    self.post(report)

    def settle(self):
        """Read everything, in some order, without further losses."""
        if not self.connected:
            self.connect()
        for _ in range(10_000):
            self.serve()
            if not (self.wire or self.answers):
                return
            self.read(self.rng.random() < 0.5)
        raise AssertionError("it never comes to rest")

    def known_keys(self):
        """Return all keys that the router's tree has of the worker."""
        return known_keys(self.tree)


def known_keys(tree):
    return {key for node in tree._segments.heads.values() for key in node.keys}


ACTIONS = ["store"] * 6 + ["evict"] * 4 + ["step"] * 6 + ["read"] * 8 + ["serve"] * 2
RARE = ["clear", "restart", "disconnect", "connect", "connect", "silence", "away"]


def play(seed, size, make_buffer, loss, steps=250, rare=0.04):
    rng = random.Random(seed)
    worker = Worker(size, make_buffer(), rng)
    reader = Reader(worker)
    for _ in range(steps):
        act(reader, rng.choice(RARE if rng.random() < rare else ACTIONS), make_buffer, loss)
    end(reader)
    return worker, reader


def act(reader, action, make_buffer, loss):
    worker, rng = reader.worker, reader.rng
    if action == "store":
        path = [rng.randrange(3) for _ in range(rng.randint(1, 5))]
        worker.store(rng.choice(["", "", "salt"]), path)
    elif action == "evict" and (leaves := worker.leaves()):
        worker.evict(rng.sample(leaves, rng.randint(1, min(3, len(leaves)))))
    elif action == "clear":
        worker.clear()
    elif action == "step":
        reader.published(worker.step(), lost=rng.random() < loss)
    elif action == "read":
        reader.read(rng.random() < 0.5)
    elif action == "serve":
        reader.serve()
    elif action == "disconnect":
        reader.disconnect()
    elif action == "connect" and not reader.connected:
        reader.connect()
    elif action == "away":  # for a long time
        reader.disconnect()
        reader.do(reader.sequence.lost())
    elif action == "silence":  # the replay is not answered
        reader.answers.clear()
        reader.asked = None
        reader.do(reader.sequence.failed())
    elif action == "restart":  # the connection breaks with the worker
        reader.disconnect()
        worker.restart(make_buffer())


def end(reader):
    reader.published(reader.worker.step(), lost=False)
    reader.disconnect()
    reader.settle()


@given(st.integers(0, 2**32), st.sampled_from([4, 8, 2]), st.sampled_from([0, 0.1, 0.5]))
def test_the_view_of_embedded_workers_equals_their_cache(seed, size, loss):
    worker, reader = play(seed, size, lambda: ReplayBuffer(3), loss)
    assert reader.reports.complete("w") is True
    assert len(reader.view) == len(worker.cached)
    assert reader.view.keys() == worker.keys()
    assert reader.known_keys() == worker.keys(), "and so is what the router believes"


@given(st.integers(0, 2**32), st.sampled_from([4, 8, 2]), st.sampled_from([0, 0.1, 0.5]))
def test_the_view_of_a_worker_without_history_is_part_of_its_cache(seed, size, loss):
    worker, reader = play(seed, size, lambda: ForgetfulBuffer(3), loss)
    assert reader.view.keys() <= worker.keys()
    if reader.reports.complete("w"):
        assert reader.view.keys() == worker.keys()
        assert reader.known_keys() == worker.keys()


@given(
    st.integers(0, 2**32),
    st.sampled_from([4, 8, 2]),
    st.sampled_from([ReplayBuffer, ForgetfulBuffer]),
)
def test_a_worker_of_several_engines_has_what_any_of_them_has(seed, size, buffer):
    rng, tree = random.Random(seed), PrefixTree()
    reports, readers = Reports(tree), [Reader(Worker(size, buffer(3), rng)) for _ in range(3)]
    union = KvUnion([reader.view for reader in readers], reports.take)
    for place, reader in enumerate(readers):
        reader.post = partial(union.take, place)
    tree.add_worker("w", 3 * CAPACITY // OURS)
    reports.add_worker("w", 3 * CAPACITY // OURS)
    for _ in range(400):
        action = rng.choice(RARE if rng.random() < 0.04 else ACTIONS)
        act(rng.choice(readers), action, lambda: buffer(3), 0.1)
    for reader in readers:
        end(reader)
    reported = set().union(*(reader.view.keys() for reader in readers))
    assert reports.complete("w") == all(reader.complete for reader in readers)
    if reports.complete("w"):
        assert known_keys(tree) == reported
    else:
        assert known_keys(tree) >= reported, "what else it has is believed, as without events"


def test_complete_and_incomplete_views_both_occur():
    """The properties above would be weak if views were never complete, or always."""
    complete = equal = 0
    for seed in range(60):
        worker, reader = play(seed, 4, lambda: ForgetfulBuffer(3), 0.1)
        complete += bool(reader.reports.complete("w"))
        equal += reader.view.keys() == worker.keys() and bool(worker.cached)
    assert 5 < complete < 55
    assert 5 < equal < 59


# --- single cases ---------------------------------------------------------------------------------


def stored(names, parent, blocks, size, **more):
    tokens = [token for block in blocks for token in (block,) * size]
    return BlockStored(names, parent, tokens, size, medium="GPU", **more)


def keys(blocks, size, *domain):
    tokens = np.repeat(np.array(blocks, dtype=np.uint32), size)
    return HASHER.keys(tokens, *domain).tolist()


@pytest.fixture
def view():
    return KvView("w", HASHER, 1000)


def test_a_larger_block_covers_several_router_blocks(view):
    (cached,) = view.apply([stored([1, 2], None, [5, 6], 8)])
    assert (cached.parent, list(cached.keys)) == (None, keys([5, 6], 8))
    (below,) = view.apply([stored([3], 2, [7], 8)])
    assert (below.parent, list(below.keys)) == (keys([5, 6], 8)[-1], keys([5, 6, 7], 8)[4:])
    (evicted,) = view.apply([BlockRemoved([2])])
    assert list(evicted.keys) == keys([5, 6], 8)[2:]


def test_smaller_blocks_are_parts_of_router_blocks(view):
    assert view.apply([stored([1], None, [5], 2)]) == []
    (cached,) = view.apply([stored([2, 3], 1, [6, 7], 2)])
    assert (cached.parent, list(cached.keys)) == (None, keys([5, 6], 2))
    (more,) = view.apply([stored([4], 3, [8], 2)])
    assert (more.parent, list(more.keys)) == (cached.keys[0], keys([5, 6, 7, 8], 2)[1:])
    assert view.apply([BlockRemoved([3])])[0].keys == more.keys, "without its half it is nothing"
    assert view.apply([BlockRemoved([4])]) == []
    assert view.apply([BlockRemoved([2])])[0].keys == cached.keys
    assert len(view) == 1


def test_salts_equal_those_of_the_router(view):
    (cached,) = view.apply([stored([1, 2], None, [5, 6], 4, extra_keys=[["t1"], None])])
    assert list(cached.keys) == keys([5, 6], 4, "t1")
    (below,) = view.apply([stored([3], 2, [7], 4)])
    assert list(below.keys) == keys([5, 6, 7], 4, "t1")[2:]


def test_an_adapter_has_prefixes_of_its_own(view):
    lora = {"lora_id": 1, "lora_name": "l"}  # and extra keys as vLLM's block pool writes them
    view.apply([stored([1, 2], None, [5, 6], 4, extra_keys=[["t1"], None])])
    extra = [["l", "t1"], ["l"]]
    (cached,) = view.apply([stored([3, 4], None, [5, 6], 4, extra_keys=extra, **lora)])
    assert list(cached.keys) == keys([5, 6], 4, "t1", "l")
    (below,) = view.apply([stored([5], 4, [7], 4, extra_keys=[["l"]], **lora)])
    assert (below.parent, list(below.keys)) == (cached.keys[-1], keys([5, 6, 7], 4, "t1", "l")[2:])
    (unsalted,) = view.apply([stored([6], None, [5], 4, extra_keys=[["l"]], **lora)])
    assert list(unsalted.keys) == keys([5], 4, "", "l")
    assert len(view.keys()) == view.left_out + 6
    assert view.apply([BlockRemoved([3])])[0].keys == cached.keys[:1], "the model keeps its block"


@pytest.mark.parametrize(
    "event",
    [
        stored([1], 99, [5], 4),
        stored([1], None, [5], 4, lora_name="l", extra_keys=[["l", ["image", 0]]]),
        stored([1], None, [5], 4, lora_name="l", extra_keys=[["l", "salt", "image"]]),
        stored([1], None, [5], 4, lora_id=3),
        stored([1], None, [5], 4, extra_keys=[["salt", "image"]]),
        stored([1], None, [5], 4, extra_keys=[[["image", 0]]]),
        stored([1], None, [5], 6),
    ],
)
def test_blocks_without_a_router_key_are_ignored(view, event):
    assert view.apply([event, stored([2], 1, [6], event.block_size)]) == []
    assert (len(view), view.left_out) == (0, 2)


def test_blocks_before_an_image_are_kept(view):
    extra = [["salt"], None, [["image", 0]], None]
    (cached,) = view.apply([stored([1, 2, 3, 4], None, [5, 6, 7, 8], 4, extra_keys=extra)])
    assert list(cached.keys) == keys([5, 6], 4, "salt")
    assert view.left_out == 2


def test_other_memory_and_layer_kinds_are_ignored(view):
    elsewhere = BlockStored([1], None, [5] * 4, 4, medium="CPU")
    assert view.apply([elsewhere, BlockStored([1], None, [5] * 4, 4, group_idx=1)]) == []
    view.apply([stored([1], None, [5], 4)])
    assert view.apply([BlockRemoved([1], "CPU"), BlockRemoved([1], "GPU", 1)]) == []
    assert len(view) == 1


def test_a_worker_cannot_claim_more_than_its_capacity():
    small = KvView("w", HASHER, 16)
    reports = small.apply([stored(list(range(100)), None, list(range(100)), 4)])
    assert len(small) == len(reports[0].keys) == 5
    assert small.left_out == 95


@given(st.integers(0, 2**32), st.sampled_from([OURS, 2 * OURS, OURS // 2, 1]))
def test_a_worker_that_uses_its_hashes_again_claims_what_the_view_has(seed, size):
    rng, view, claimed = random.Random(seed), KvView("w", HASHER, CAPACITY), set()
    for _ in range(60):
        names = rng.sample(range(8), rng.randint(1, 6))
        parent = rng.choice([None, *range(8)])
        blocks = [rng.randrange(3) for _ in names]
        for report in view.apply([stored(names, parent, blocks, size)]):
            if isinstance(report, WorkerCached):
                claimed.update(report.keys)
            else:
                claimed.difference_update(report.keys)
        assert claimed <= view.keys()


def test_many_branches_leave_no_state(view):
    view.apply([stored([1], None, [5], 2)])
    for number in range(2, 500):
        view.apply([stored([number], 1, [number], 2)])
        view.apply([BlockRemoved([number])])
    assert view._below == {1: set()}
    view.apply([BlockRemoved([1])])
    assert (view._below, len(view)) == ({}, 0)


def test_extended_keys_equal_those_of_the_whole_prompt():
    tokens = np.random.default_rng(1).integers(0, 2**18, 40_000).astype(np.uint32)
    hasher = BlockHasher(3)
    whole = BlockHasher(3).keys(tokens, "salt")
    key, position, found = hasher.start("salt"), 0, []
    for length in (16, 64, 39_920):
        part = hasher.extend(key, position, tokens[position : position + length], 16)
        found += part
        key, position = part[-1], position + length
    assert array("Q", found) == whole
