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


def test_work_that_waits_is_cancelled_with_the_threads():
    threads = TurnThreads(1, "test")
    work = Work(threads)
    waits = work.add("a", "never") + work.add("b", "never")
    threads.shutdown(wait=False, cancel_futures=True)
    work.release()
    assert all(each.cancelled() for each in waits)
    threads.shutdown()
    assert not work.done


async def test_a_disconnect_drops_what_waits_and_leaves_what_runs_its_thread(one):
    work = Work(one)
    first, waits = (
        asyncio.wrap_future(future)
        for future in (work.first, one.submit_for("a", lambda: work.done.append("waits")))
    )
    for left in (first, waits):
        left.cancel()
    assert [type(each) for each in await asyncio.gather(first, waits, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    following = asyncio.wrap_future(one.submit_for("b", lambda: "next"))
    assert not following.done(), "the thread is not free yet"
    work.release()
    assert await following == "next"
    assert not work.done


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
