"""Test the threads in which prompts are tokenised: turns of tenants, and disconnects."""

import asyncio
import threading

import pytest
from until import settle

from fairserve.platform.fleet.prompt_threads import PromptThreads


class Work:
    """Work that ends when the test releases it; records the order in which it began."""

    def __init__(self):
        self.began, self.done = [], threading.Semaphore(0)
        self._first = threading.Event()

    def of(self, name):
        def work():
            self.began.append(name)
            self._first.set()
            assert self.done.acquire(timeout=60)
            return name

        return work

    async def has_begun(self):
        assert await asyncio.to_thread(self._first.wait, 60)


@pytest.fixture
def large():
    large = PromptThreads(1)
    yield large
    large.close()


def tokenize(large, work, tenant, name):
    return asyncio.create_task(large.run(tenant, work.of(name)))


async def test_tenants_take_turns_whatever_their_number_of_prompts(large):
    work = Work()
    asked = [tokenize(large, work, "flood", f"f{number}") for number in range(4)]
    await work.has_begun()
    asked += [
        tokenize(large, work, "a", "a0"),
        tokenize(large, work, "b", "b0"),
        tokenize(large, work, "a", "a1"),
    ]
    await settle()
    work.done.release(len(asked))
    assert await asyncio.gather(*asked) == ["f0", "f1", "f2", "f3", "a0", "b0", "a1"]
    assert work.began == ["f0", "f1", "a0", "b0", "f2", "a1", "f3"]


async def test_a_disconnect_frees_the_slot_but_not_the_working_thread(large):
    work = Work()
    first = tokenize(large, work, "a", "first")
    await work.has_begun()
    waits, next_one = tokenize(large, work, "a", "waits"), tokenize(large, work, "b", "next")
    await settle()
    for left in (first, waits):
        left.cancel()
    assert [type(each) for each in await asyncio.gather(first, waits, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    assert work.began == ["first"], "the thread is not free yet"
    work.done.release(2)
    assert await next_one == "next"
    assert work.began == ["first", "next"]
    work.done.release()
    assert await tokenize(large, work, "a", "again") == "again"


async def test_failed_work_releases_its_thread(large):
    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await large.run("a", fails)
    assert await large.run("a", lambda: 1) == 1
