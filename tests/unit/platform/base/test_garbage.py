"""Collections visit few objects of a process with many, and find what is garbage."""

import asyncio
import collections
import functools
import gc
import os
import sys
import threading
import traceback
import weakref

import pytest
from until import until

from fairserve.platform.base.garbage import SmallCollections, objects_of, uncollected

LIVE = 300_000
MOST = 40_000
"""Objects of one collection: some ms."""


TUPLES = 60
"""With a reference to every object in each collection, some 5 % failed."""


def alone(test):
    """Run a test in a forked process: no other thread holds a collection up, while objects are made."""

    @functools.wraps(test)
    def forked(*given, **named):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                test(*given, **named)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, "see its output"

    return forked


class Node:
    """An object that is garbage only for the collector."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def visited():
    """Yield the numbers of objects that collections have visited, without those of other tests.

    Servers of other tests that still run have the same policy, and would freeze the objects of these.
    """
    found, thresholds, others = [], gc.get_threshold(), gc.callbacks[:]

    def count(phase, info):
        if phase == "start":
            found.append(sum(objects_of(each) for each in range(info["generation"] + 1)))

    gc.collect()
    gc.freeze()
    gc.collect()  # of nothing: else the first old one waits for a quarter of the objects of other tests
    gc.callbacks[:] = [count]
    yield found
    gc.callbacks[:] = others
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def small(visited):
    # As in a process that had no objects before: those of other tests are not counted.
    small = SmallCollections(looked_s=0.001, more_blocks=LIVE - sys.getallocatedblocks())
    small.start()
    yield small
    small.stop()


@alone
def test_no_collection_visits_all_live_objects(small, visited):
    live = [[] for _ in range(LIVE)]
    assert 0 < max(visited) < MOST
    assert sum(visited) < 4 * len(live), "each is visited by a few collections"


@alone
def test_collections_are_small_though_as_many_objects_are_freed_as_are_made(small, visited):
    live = collections.deque([] for _ in range(LIVE))
    gc.freeze()
    for number in range(LIVE):
        live.append([])
        live.popleft()
        if number % 2500 == 0:
            small.collect_young()
    gc.collect(0)
    assert max(visited) < MOST


@alone
def test_garbage_of_new_objects_is_collected(small):
    made = [weakref.ref(Node()) for _ in range(100_000)]
    assert sum(each() is not None for each in made) < MOST


def test_collections_hold_no_object_of_another_thread(small):
    """CPython fails to build a tuple of unknown length that anything else refers to."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    ended = threading.Event()

    def collect():
        while not ended.is_set():
            [[] for _ in range(1000)]

    other = threading.Thread(target=collect)
    other.start()
    try:
        for _ in range(TUPLES):
            tuple([[] for _ in range(200)] for _ in range(300))
    finally:
        ended.set()
        other.join()
        sys.setswitchinterval(interval)


async def test_garbage_of_frozen_objects_is_collected_once_there_are_many(small):
    small.collect_all()
    nodes = [Node() for _ in range(LIVE // 10)]
    last = weakref.ref(nodes[0])
    del nodes
    gc.collect()
    assert (last() is not None, small.due) == (True, False), "it was frozen"
    running = asyncio.create_task(small.run())
    live = [[] for _ in range(LIVE * 2)]
    await until(lambda: last() is None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(live) == LIVE * 2


@alone
def test_many_objects_are_made_without_a_collection(small, visited):
    with uncollected():
        state = [[] for _ in range(LIVE)]
        assert not visited
        del state
    assert gc.isenabled()
    with uncollected(stays=True):
        state = [[] for _ in range(LIVE)]
    gc.collect()
    assert max(visited) < MOST, "they are frozen"
    assert len(state) == LIVE
