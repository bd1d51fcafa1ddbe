"""Processes that the benchmark starts, and the CPU and the memory of a process with its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

STOP_S = 60.0
_CPU_CLOCK = 2
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


class BenchStartError(Exception):
    """A process did not start. The message has the end of its log."""


class BenchProcess:
    """A child process in a session of its own, which runs on some cores only and writes a log."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        cores: Collection[int] = (),
        env: Mapping[str, str] | None = None,
        piped: bool = False,
    ) -> None:
        """Start ``command``; with ``piped``, its standard input and output are pipes."""
        self.log = log
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with log.open("ab") as out:
            self.process = subprocess.Popen(  # noqa: S603
                command,
                stdin=pipe,
                stdout=subprocess.PIPE if piped else out,
                stderr=out,
                env=env,
                text=True,
                start_new_session=True,
            )
        self.tree = Tree(self.process.pid)
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, cores)  # before it has threads or children

    def write(self, line: str) -> None:
        """Write a line to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """Write a line to the process; return the line that it answers. Raises StartError."""
        self.write(line)
        return self.read()

    def read(self) -> str:
        """Return the next line of the process. Raises StartError if it has ended."""
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            raise BenchStartError(f"a process ended:\n{self.log_end()}")
        return answer.strip()

    def log_end(self, size: int = 3000) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-size:]

    def stop(self) -> None:
        """Ask the process to end, wait, and kill what is left of it."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        children = [*self.tree.members()]
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        for child in children:
            with contextlib.suppress(*_GONE):
                child.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Tree:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        """Measure the process ``pid``."""
        self._root = psutil.Process(pid)

    def members(self) -> Iterator[psutil.Process]:
        """Yield the process and its descendants."""
        with contextlib.suppress(*_GONE):
            yield self._root
            yield from self._root.children(recursive=True)

    def cpu_s(self) -> float:
        """Return the CPU time of all of them since they began, ended descendants included.

        A process counts its descendants that have ended once it has waited for them, in multiples of
        10 ms.
        """
        all_s = 0.0
        for process in self.members():
            with contextlib.suppress(*_GONE):
                times = process.cpu_times()
                all_s += _own_cpu_s(process.pid, times.user + times.system)
                all_s += times.children_user + times.children_system
        return all_s

    def memory_bytes(self) -> int:
        """Return the memory of all of them; pages that several share count once."""
        total = 0
        for process in self.members():
            with contextlib.suppress(*_GONE):
                memory = process.memory_full_info()
                total += getattr(memory, "pss", memory.uss)
        return total


def _own_cpu_s(pid: int, coarse_s: float) -> float:
    """Return the CPU time of one process, all threads; ``coarse_s`` where only psutil knows it.

    Linux has a clock for each process, with a resolution of nanoseconds: its number is what
    clock_getcpuclockid(3) returns. The times of psutil are multiples of 10 ms.
    """
    if sys.platform != "linux":
        return coarse_s
    try:
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    except OSError:
        return coarse_s


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt like Ctrl-C, so that what was started is stopped. For the main thread."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """Return a TCP port of the loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until(ready: Callable[[], bool], process: BenchProcess, seconds: float) -> None:
    """Poll ``ready`` until it is true. Raises StartError if the process ends, or after ``seconds``."""
    end_s = time.monotonic() + seconds
    while not ready():
        if process.process.poll() is not None:
            raise BenchStartError(f"{process.log.stem} ended at its start:\n{process.log_end()}")
        if time.monotonic() > end_s:
            raise BenchStartError(
                f"{process.log.stem} was not ready in {seconds:g} s:\n{process.log_end()}"
            )
        time.sleep(0.1)
