"""Work in a thread outlives no cancellation."""

import asyncio
import threading

import pytest
from until import until

from fairserve.platform.base.threads import to_its_end


async def test_a_cancellation_waits_until_the_work_has_ended():
    begun, proceed, ended = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        assert proceed.wait(60)
        ended.append(True)

    task = asyncio.create_task(to_its_end(work))
    await until(begun.is_set)
    task.cancel()
    waiting = asyncio.create_task(asyncio.wait({task}))
    await asyncio.to_thread(lambda: None)
    assert (task.done(), ended) == (False, [])
    proceed.set()
    await waiting
    assert (task.cancelled(), ended) == (True, [True])


async def test_results_and_errors_are_those_of_the_work():
    assert await to_its_end(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await to_its_end(divmod, 7, 0)
