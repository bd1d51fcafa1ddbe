"""Test the threads of requests: turns of tenants, and threads of management beside those of calls."""

import asyncio
import threading

import pytest

from fairserve.platform.base import bulkhead
from fairserve.platform.base.bulkhead import (
    RequestThreads,
    TurnThreads,
    as_management,
    is_management,
    work_for,
)


@pytest.fixture
def one():
    threads = TurnThreads(1, "test")
    yield threads
    threads.shutdown()


class Work:
    """Work whose first piece holds the only thread until the test releases it."""

    def __init__(self, threads):
        self.threads, self.done, self._held = threads, [], threading.Event()
        self.first = threads.submit(self._held.wait, 60)

    def add(self, owner, *names):
        work_for(owner)
        return [self.threads.submit(self.done.append, name) for name in names]

    def release(self):
        self._held.set()
        assert self.first.result(60)


def test_tenants_take_turns_whatever_their_number_of_pieces(one):
    work = Work(one)
    added = work.add("flood", "f0", "f1", "f2", "f3") + work.add("a", "a0", "a1")
    added += work.add("b", "b0")
    work.release()
    for each in added:
        each.result(60)
    assert work.done == ["f0", "a0", "b0", "f1", "a1", "f2", "f3"]


def test_cancelled_and_failing_work_leaves_its_turn(one):
    work = Work(one)
    [cancelled] = work.add("a", "never")
    work_for("a")
    failing = one.submit(int, "x")
    [last] = work.add("a", "last")
    assert cancelled.cancel()
    work.release()
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result(60)
    last.result(60)
    assert work.done == ["last"]


async def test_calls_have_threads_while_management_has_none_left(monkeypatch):
    monkeypatch.setattr(bulkhead, "CALL_THREADS", 1)
    monkeypatch.setattr(bulkhead, "MANAGEMENT_THREADS", 1)
    threads, held = RequestThreads(), threading.Event()
    asyncio.get_running_loop().set_default_executor(threads)
    with as_management():
        slow = asyncio.create_task(asyncio.to_thread(held.wait, 60))
        waits = asyncio.create_task(asyncio.to_thread(is_management))
    assert await asyncio.to_thread(is_management) is False
    held.set()
    assert await slow
    assert await waits is True
