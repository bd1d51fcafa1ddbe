"""Start the embedded workers as child processes, and restart them when they die.

A ready worker prints one JSON line with its port. A worker that cannot start prints the reason instead
and is not restarted if none has ever been ready. A dead worker is restarted after a delay that doubles
up to a bound and is reset once the worker has run for a while. Each child has its own session, so that
Ctrl-C reaches only the server, which drains before it ends them; children end when the server dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from fairserve.engine.backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
HEALTHY_S = 60.0
"""Run time in seconds after which the restart delay is reset."""
GIVE_UP_AFTER = 3
"""Number of failed starts, before any worker was ever ready, after which the server gives up."""


class WorkersFailedError(Exception):
    """No worker ever became ready."""


@dataclass(slots=True)
class Process:
    """State of a supervised worker for status pages."""

    worker_id: str
    pid: int | None = None
    port: int | None = None
    starts: int = 0


def worker_command(
    model: str,
    kv_tokens: int,
    max_batch: int,
    local_scheduler: str,
    scheduler_options: Sequence[str] = (),
    socket_folder: Path | None = None,
) -> list[str]:
    """Return the command line of one embedded worker; it publishes KV events in ``socket_folder``."""
    command = [sys.executable, "-m", "fairserve.platform.server.cli", "worker", "--port", "0"]
    if model:
        command += ["--model", model]
    command += ["--kv-tokens", str(kv_tokens), "--max-batch", str(max_batch)]
    command += ["--local-scheduler", local_scheduler, "--parent-pid", str(os.getpid())]
    if socket_folder is not None:
        command += ["--kv-events-endpoint", f"ipc://{socket_folder}/*"]
        command += ["--kv-events-replay-endpoint", f"ipc://{socket_folder}/*"]
    for option in scheduler_options:
        command += ["--scheduler-option", option]
    return command


def socket_folder(data_dir: Path, name: str = "sockets") -> Path:
    """Return an empty folder for sockets, readable by this user only, as they carry prompts.

    It is in ``data_dir``, or elsewhere if that path is too long or its disk does not support sockets.
    """
    folder = data_dir.resolve() / name
    shutil.rmtree(folder, ignore_errors=True)  # leftovers of a killed server
    folder.mkdir(mode=0o700, parents=True)
    longest = folder / "1234567-replays"
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(longest))
        longest.unlink()
    except OSError:
        folder.rmdir()
        return Path(tempfile.mkdtemp(prefix="fairserve-"))
    return folder


class Supervisor:
    """Supervisor of ``count`` workers ``w0``, ``w1``, ... Belongs to one event loop."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        on_ready: Callable[[str, str], None],
        on_lost: Callable[[str], None],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """``on_ready(worker_id, url)`` and ``on_lost(worker_id)`` are called from the loop."""
        self._command = list(command)
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._backoff = Backoff(first_pause_s, LAST_PAUSE_S)
        self._random = random.Random()  # noqa: S311  a delay is not a secret
        self._processes = [Process(f"w{number}") for number in range(count)]
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._any_ready = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Future that fails with WorkersFailedError if no worker ever becomes ready."""

    def processes(self) -> list[Process]:
        """Return the workers, read-only."""
        return list(self._processes)

    def start(self) -> None:
        """Start all workers; returns at once."""
        for process in self._processes:
            task = asyncio.create_task(self._keep(process), name=f"supervise {process.worker_id}")
            self._tasks.append(task)

    async def stop(self, grace_s: float = 5.0) -> None:
        """End all workers by SIGTERM, and after ``grace_s`` by SIGKILL."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        children = list(self._children.values())
        for child in children:
            _signal(child, signal.SIGTERM)
        ends = [asyncio.create_task(child.wait()) for child in children]
        if ends:
            _, late = await asyncio.wait(ends, timeout=grace_s)
            if late:
                logger.warning(
                    "killed %d workers that did not stop within %.0f s", len(late), grace_s
                )
            for child in children:
                _signal(child, signal.SIGKILL)
            await asyncio.gather(*ends)
        self._children.clear()

    async def _keep(self, process: Process) -> None:
        """Run and restart a worker until the task is cancelled."""
        failures = pauses = 0
        while True:
            began_s = time.monotonic()
            was_ready, reason = await self._run_once(process)
            failures = 0 if was_ready else failures + 1
            if not self._any_ready and (reason or failures >= GIVE_UP_AFTER):
                if not self.failed.done():
                    text = f"the workers ended {failures} times before they were ready"
                    if reason:
                        text = f"worker {process.worker_id} cannot start: {reason}"
                    self.failed.set_exception(WorkersFailedError(text))
                return
            if time.monotonic() - began_s >= HEALTHY_S:
                pauses = 0
            pauses += 1
            await asyncio.sleep(self._backoff.pause_s(pauses, self._random))

    async def _run_once(self, process: Process) -> tuple[bool, str]:
        """Start a worker and wait for its end.

        Returns whether it became ready, and the reported reason if it could not start.
        """
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._children[process.worker_id] = child
        process.pid, process.port = child.pid, None
        process.starts += 1
        ready, reason = False, ""
        assert child.stdout is not None
        # Reads to the end, also after it is ready: a full pipe would block the worker.
        async for line in _lines(child.stdout):
            event = _event(line)
            if event.get("event") == "failed":
                reason = str(event.get("reason"))
            port = event.get("port") if event.get("event") == "ready" else None
            if isinstance(port, int) and not ready:
                ready = self._any_ready = True
                process.port = port
                self._on_ready(process.worker_id, f"http://127.0.0.1:{port}")
        status = await child.wait()
        del self._children[process.worker_id]
        process.pid = process.port = None
        logger.warning("worker %s ended (%s)", process.worker_id, _status_text(status))
        if ready:
            self._on_lost(process.worker_id)
        return ready, reason


async def _lines(output: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a worker's output; one that is longer than any report is passed over."""
    while True:
        try:
            line = await output.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line


def _event(line: bytes) -> dict[str, Any]:
    """Return a worker's JSON report; empty for any other line."""
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)


def _status_text(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
