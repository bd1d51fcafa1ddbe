"""Bytes that a copy of this process computes, as Redis makes its own dumps.

A forked process has all objects as they are at that moment, so it can write down a large state while
this process continues to change it. The fork itself holds the process: about 40 ms for each GB of
memory. Until the copy ends, objects that either of both touches take their memory twice.

Weakness: the copy has one thread only. What it computes must take no lock that another thread may hold
at the fork: it logs, imports and opens nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

logger = logging.getLogger(__name__)

PART_BYTES = 1 << 20
FAILED = 1
"""Exit code of a copy that writes an error."""
LESS_URGENT = 10
"""Added to the niceness of a copy: the process that answers calls comes first."""


class ForkedResult:
    """The bytes that a copy of this process computes. Belongs to the running event loop."""

    def __init__(self, compute: Callable[[], bytes]) -> None:
        """Fork at once; compute here if the machine has no room for another process."""
        self._parts: list[bytes] = []
        self._status: int | None = None
        self._loop = asyncio.get_running_loop()
        self._source, target = os.pipe()
        try:
            self._pid = _fork(compute, target)
        except OSError as error:
            os.close(self._source)
            logger.warning("this process waits for what a copy would compute: %s", error)
            self._parts, self._status = [compute()], 0
            return
        finally:
            os.close(target)
        os.set_blocking(self._source, False)
        self._loop.add_reader(self._source, self._read)

    @property
    def done(self) -> bool:
        """True once the copy has ended."""
        return self._status is not None

    def result(self) -> bytes:
        """Return what it computed, once it is done. Raises ChildProcessError if it failed."""
        data = b"".join(self._parts)
        if self._status:
            code = os.waitstatus_to_exitcode(self._status)
            reason = data.decode() if code == FAILED else f"exit code {code}"
            raise ChildProcessError(f"a copy of this process failed: {reason}")
        return data

    def end(self) -> None:
        """End the copy if it is not done."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._ended()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            if part := os.read(self._source, PART_BYTES):
                self._parts.append(part)
            else:
                self._ended()

    def _ended(self) -> None:
        self._loop.remove_reader(self._source)
        os.close(self._source)
        _, self._status = os.waitpid(self._pid, 0)


def _fork(compute: Callable[[], bytes], target: int) -> int:
    # A signal that arrives in the copy would wake this process' loop, whose descriptors it shares.
    allowed = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _compute(compute, target)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, allowed)


def _compute(compute: Callable[[], bytes], target: int) -> NoReturn:
    """Write the result or the error, and end without the steps by which a process ends itself."""
    status = FAILED
    try:
        # Sockets and locked files end with the process that uses them, not with its copy.
        os.closerange(3, target)
        os.closerange(target + 1, os.sysconf("SC_OPEN_MAX"))
        os.nice(LESS_URGENT)
        data, status = _result(compute)
        left = memoryview(data)
        while left:
            left = left[os.write(target, left) :]
    finally:
        os._exit(status)


def _result(compute: Callable[[], bytes]) -> tuple[bytes, int]:
    try:
        return compute(), 0
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode(), FAILED
