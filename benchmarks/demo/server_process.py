"""The real server as a child process with its own session, folder, port and keys.

The child is stopped by its pid with SIGTERM. Its workers must be gone after that: remaining ones
are killed and reported. The folder with its database, journal and log is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME

START_S = 120.0
STOP_S = 20.0
WORKER_END_S = 2.0
POLL_S = 0.1
LOG_TAIL_LINES = 25


class ServerError(RuntimeError):
    """The server did not start, died, or did not end properly. Contains its last log lines."""


class DemoServer:
    """``fairserve serve`` with one system. An async context manager: ready inside, stopped after."""

    def __init__(self, system: str, arguments: Sequence[str], *, keep_logs: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"fairserve-demo-{system}-"))
        self.admin_key = secrets.token_urlsafe(32)
        self.url = ""
        self.problems: list[str] = []
        """Problems found when it ended; empty if there were none."""
        self._system = system
        self._arguments = list(arguments)
        self._keep_logs = keep_logs
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """Return the path of the log of the server and its workers."""
        return self.folder / "server.log"

    async def __aenter__(self) -> Self:
        """Start it and wait until it is ready. Raises ServerError."""
        try:
            self._start()
            async with asyncio.timeout(START_S):
                await self._ready()
        except TimeoutError:
            error = self._error(f"was not ready within {START_S:g} s")  # while the log exists
            await self._stop()
            raise error from None
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it; see ``problems``."""
        await self._stop()

    def check_alive(self) -> None:
        """Raise ServerError if the server has ended by itself."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise self._error(f"ended by itself with exit code {code}")

    def kill(self) -> None:
        """Kill the server and its workers at once and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            workers = _children(self._process.pid)
            self._process.kill()
            self._process.wait()
            _kill(workers)
        self._remove()

    # --- start ------------------------------------------------------------------------------------

    def _start(self) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("FAIRSERVE_") and name not in ("DATABASE_URL", "REDIS_URL")
        }
        command = [
            *(sys.executable, "-m", "fairserve.platform.server.cli", "serve"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--data-dir", str(self.folder / "data")),
            # Its outputs reach their limits, as the schedule of the demo assumes.
            *("--system", self._system, "--model", BUILTIN_MODEL_NAME),
            *self._arguments,
        ]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                command,
                env={
                    **inherited,
                    "FAIRSERVE_ADMIN_KEY": self.admin_key,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: we stop it gracefully
            )

    async def _ready(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                self.check_alive()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(self.url + "/health/readiness") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(POLL_S)

    # --- stop -------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        process = self._process
        if process is None:
            self._remove()
            return
        try:
            workers = _children(process.pid)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                if not await _within(STOP_S, lambda: process.poll() is not None):
                    self.problems.append(f"the server did not end within {STOP_S:g} s of SIGTERM")
                    process.kill()
            code = process.wait()
            if code != 0:
                self.problems.append(f"the server ended with exit code {code}")
            if not await _within(WORKER_END_S, lambda: not any(map(_is_alive, workers))):
                self.problems.append("the server left workers behind; they were killed")
                _kill(workers)
            self._read_log()
        finally:
            self.kill()

    def _read_log(self) -> None:
        text = self.log_path.read_text(errors="replace")
        if "Traceback (most recent call last)" in text:
            self.problems.append("the server's log has a traceback:\n" + self._tail(text))
        elif self.problems:
            self.problems.append("the last lines of its log:\n" + self._tail(text))

    def _remove(self) -> None:
        if not self._keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _error(self, what: str) -> ServerError:
        tail = ""
        if self.log_path.exists():
            tail = "\n" + self._tail(self.log_path.read_text(errors="replace"))
        return ServerError(f"the {self._system} server {what}{tail}")

    @staticmethod
    def _tail(text: str) -> str:
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


async def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true within the time."""
    for _ in range(round(seconds / POLL_S)):
        if condition():
            return True
        await asyncio.sleep(POLL_S)
    return condition()


def _children(pid: int) -> list[int]:
    """Return the child processes of a process; empty without ``/proc``."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in path.read_text().split()]
    except OSError:
        return []


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
