"""A copy of the process computes of one moment, harms nothing of its process, and ends with it."""

import asyncio
import os
import signal
from unittest.mock import Mock

import pytest
from processes import alive, children
from until import until

from fairserve.platform.base import forked
from fairserve.platform.base.forked import ForkedResult


async def result(compute):
    copy = ForkedResult(compute)
    await until(lambda: copy.done)
    return copy.result()


def open_files():
    return set(os.listdir("/proc/self/fd"))


async def test_a_copy_computes_of_the_moment_of_the_fork():
    state = [b"x" * 1_000_000]
    copy = ForkedResult(lambda: b"".join(state))
    state.append(b"later")
    await until(lambda: copy.done)
    assert copy.result() == state[0]


async def test_a_copy_has_no_files_and_gets_no_signals():
    before = open_files()
    allowed = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    files = await result(lambda: " ".join(open_files()).encode())
    # Standard streams, the pipe of the result, and the folder that is listed.
    assert len(files.split()) == 5
    blocked = await result(lambda: str(signal.SIGTERM in signal.pthread_sigmask(0, ())).encode())
    assert blocked == b"True"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == allowed
    assert open_files() == before


async def test_an_error_of_the_copy_is_one_of_its_result():
    with pytest.raises(ChildProcessError, match="copy of this process failed: ValueError: no"):
        await result(Mock(side_effect=ValueError("no")))
    with pytest.raises(ChildProcessError, match="failed: exit code -9"):
        await result(lambda: os.kill(os.getpid(), signal.SIGKILL))


async def test_a_machine_without_room_for_a_copy_computes_itself(monkeypatch, caplog):
    before = open_files()
    monkeypatch.setattr(forked.os, "fork", Mock(side_effect=BlockingIOError("no room")))
    assert await result(lambda: str(os.getpid()).encode()) == str(os.getpid()).encode()
    assert "no room" in caplog.text
    assert open_files() == before


async def test_a_copy_ends_when_it_is_not_wanted():
    before = set(children(os.getpid()))
    copy = ForkedResult(signal.pause)
    (pid,) = set(children(os.getpid())) - before
    await asyncio.sleep(0)
    assert alive(pid)
    assert not copy.done
    copy.end()
    copy.end()
    assert copy.done
    assert not alive(pid)
