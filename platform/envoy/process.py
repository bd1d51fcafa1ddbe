"""Envoy as a supervised child of the server.

It is restarted when it dies, after a delay that doubles up to a bound and is reset once it has run for a
while. It is the child of a guard (:mod:`fairserve.platform.envoy.guard`), by which it ends with the
server, so that a killed server leaves no Envoy. Both have their own session, so that Ctrl-C reaches only
the server, which drains first.

Weakness: the guard learns of the end of the thread that started it: start it from the thread that lives
as long as the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from fairserve.engine.backoff import Backoff
from fairserve.platform.envoy.binary import EnvoyError, envoy_path, validate
from fairserve.platform.envoy.workers_file import replace_file

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
HEALTHY_S = 60.0
"""Run time in seconds after which the restart delay is reset."""
START_S = 30.0
"""Seconds within which a started Envoy must listen."""
POLL_S = 0.02
ADMIN_S = 5.0
FLUSH_MS = 50
"""Longest time in milliseconds for which a line of the log of ended calls waits in memory."""
LOG_CHECK_S = 10.0
DRAIN_S = 1
"""Seconds for which a draining Envoy still accepts connections, whose answers ask to close them."""
_GUARD = str(Path(__file__).with_name("guard.py"))
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_LINE = re.compile(r"\[(\w+)\]\[(\w+)\] (.*)", re.DOTALL)


class EnvoyProcess:
    """One Envoy. Belongs to one event loop, in the main thread."""

    def __init__(
        self,
        bootstrap: Mapping[str, Any],
        folder: Path,
        *,
        concurrency: int = 0,
        log_level: str = "warning",
        ends_file: Path | None = None,
        max_log_bytes: int = 64 * 1024 * 1024,
        on_restart: Callable[[], None] = lambda: None,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        """``bootstrap`` is the configuration, written to ``envoy.json`` in the private ``folder``.

        ``ends_file`` is the log of ended calls, which begins a new file at ``max_log_bytes``; one file
        before it is kept, with the suffix ``.1``. ``on_restart`` is called when Envoy has died, before
        it starts again. The other arguments are Envoy's threads (0: one for each CPU) and log level.
        """
        self._bootstrap = dict(bootstrap)
        self._configuration = folder / "envoy.json"
        self._admin = str(self._bootstrap["admin"]["address"]["pipe"]["path"])
        self._concurrency = concurrency or len(os.sched_getaffinity(0))
        self._log_level = log_level
        self._ends_file = ends_file
        self._max_log_bytes = max_log_bytes
        self._on_restart = on_restart
        self._backoff = Backoff(first_pause_s, LAST_PAUSE_S)
        self._random = random.Random()  # noqa: S311  a delay is not a secret
        self._child: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port: int | None = None
        """Port on which Envoy listens, from the first start on; None for a Unix socket."""
        self.starts = 0
        """Number of starts, restarts included."""

    @property
    def pid(self) -> int | None:
        """Return the id of the guard's process, which ends with Envoy; None while there is none."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Check the configuration, start Envoy and wait until it listens. Raises EnvoyError."""
        self._write_configuration()
        await validate(self._configuration)
        child = await self._spawn()
        try:
            await self._listening(child)
        except BaseException:
            await self.stop(0)
            raise
        self._tasks.append(asyncio.create_task(self._keep(child), name="supervise envoy"))
        if self._ends_file is not None:
            self._tasks.append(asyncio.create_task(self._bound_log(), name="bound envoy's log"))

    async def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and wait until no request is open, for at most ``timeout_s``.

        Answers on open connections ask their clients to close them.
        """
        try:
            await self._ask("POST", "/drain_listeners?graceful")
            async with asyncio.timeout(timeout_s):
                while await self._requests():  # noqa: ASYNC110  Envoy sends no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            logger.warning("Envoy has open requests after %g s", timeout_s)
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("Envoy cannot drain: %s", error)

    async def stop(self, grace_s: float = 5.0) -> None:
        """End Envoy by SIGTERM, and after ``grace_s`` by SIGKILL. May be repeated."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await child.wait()
        except TimeoutError:
            logger.warning("killed Envoy, which did not stop within %g s", grace_s)
            _kill(child)
            await child.wait()

    async def reopen_logs(self) -> None:
        """Let Envoy open its log files again, after one was renamed."""
        await self._ask("POST", "/reopen_logs")

    # --- the child --------------------------------------------------------------------------------

    def _write_configuration(self) -> None:
        content = orjson.dumps(self._bootstrap, option=orjson.OPT_INDENT_2)
        replace_file(self._configuration, content)

    async def _spawn(self) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _GUARD, str(os.getpid())),
            *(str(envoy_path()), "-c", str(self._configuration)),
            *("--concurrency", str(self._concurrency)),
            "--disable-hot-restart",
            *("--drain-time-s", str(DRAIN_S), "--drain-strategy", "immediate"),
            *("--file-flush-interval-msec", str(FLUSH_MS)),
            *("--log-level", self._log_level, "--log-format", "[%l][%n] %v"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._child = child
        self.starts += 1
        self._tasks.append(asyncio.create_task(_log_lines(child), name="log of envoy"))
        return child

    async def _listening(self, child: asyncio.subprocess.Process) -> None:
        """Wait until the child accepts connections, and note its port."""
        try:
            async with asyncio.timeout(START_S):
                while (port := await self._bound_port()) is None:
                    if child.returncode is not None:
                        raise EnvoyError(f"Envoy ended at its start ({child.returncode})")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise EnvoyError(f"Envoy does not listen after {START_S:g} s") from None
        if self.port is None and port:
            self.port = port
            # A restart takes the same port, not another free one.
            public = self._bootstrap["static_resources"]["listeners"][0]["address"]
            public["socket_address"]["port_value"] = port
            self._write_configuration()

    async def _bound_port(self) -> int | None:
        """Return the port of the first listener, 0 for a Unix socket; None before it is bound."""
        try:
            status = orjson.loads(await self._ask("GET", "/listeners?format=json"))
            statuses = status["listener_statuses"]
            if not statuses:
                return None
            address = statuses[0]["local_address"]
            ready = await self._ask("GET", "/ready")
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError, KeyError):
            return None
        if ready.strip() != b"LIVE":
            return None
        return int(address.get("socket_address", {}).get("port_value", 0))

    async def _keep(self, child: asyncio.subprocess.Process) -> None:
        """Restart Envoy whenever it ends, until the task is cancelled."""
        failures, began_s = 0, time.monotonic()
        while True:
            status = await child.wait()
            logger.error("Envoy ended (%s) and is restarted", status)
            self._on_restart()
            if time.monotonic() - began_s >= HEALTHY_S:
                failures = 0
            failures += 1
            await asyncio.sleep(self._backoff.pause_s(failures, self._random))
            self._tasks = [task for task in self._tasks if not task.done()]
            began_s = time.monotonic()
            try:
                child = await self._spawn()
                await self._listening(child)
            except (EnvoyError, OSError) as error:  # OSError: no process or descriptor is free
                logger.error("Envoy does not start: %s", error)
                _kill(child)

    # --- the log of ended calls -------------------------------------------------------------------

    async def _bound_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            await self.bound_log()

    async def bound_log(self) -> None:
        """Begin a new log of ended calls if the present one is too large."""
        path = self._ends_file
        if path is None:
            return
        try:
            if path.stat().st_size < self._max_log_bytes:
                return
            path.replace(path.with_name(path.name + ".1"))
            await self.reopen_logs()
        except (aiohttp.ClientError, OSError) as error:
            logger.warning("the log %s cannot be renewed: %s", path, error)

    # --- the admin interface ----------------------------------------------------------------------

    async def _requests(self) -> int:
        """Return the number of open requests of clients."""
        name = "http.public.downstream_rq_active"
        text = await self._ask("GET", f"/stats?filter=^{name}$")
        return int(text.rsplit(b":", 1)[1]) if b":" in text else 0

    async def _ask(self, method: str, path: str) -> bytes:
        """Send a request to the admin interface. Raises ClientError or OSError."""
        timeout = aiohttp.ClientTimeout(total=ADMIN_S)
        connector = aiohttp.UnixConnector(self._admin)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, f"http://envoy{path}") as response,
        ):
            body = await response.read()
            if response.status != 200 and path != "/ready":
                raise aiohttp.ClientError(f"{path} answers {response.status}")
            return body


async def _log_lines(child: asyncio.subprocess.Process) -> None:
    """Pass Envoy's messages to our log."""
    assert child.stderr is not None
    while True:
        try:
            line = await child.stderr.readline()
        except ValueError:  # a line over the limit, which the reader has dropped
            continue
        if not line:
            return
        text = line.decode("utf-8", "replace").rstrip()
        found = _LINE.match(text)
        level, message = (found[1], f"{found[2]}: {found[3]}") if found else ("info", text)
        logger.log(_LEVELS.get(level, logging.INFO), "envoy: %s", message)


def _kill(child: asyncio.subprocess.Process) -> None:
    """Kill the guard and Envoy, which are alone in their group."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
