"""The wiring of ``fairserve serve`` on a port of this process, with scripted workers behind it.

It starts in a third of a second; pages and calls use HTTP. Control's clock advances by a microsecond
each time that it is read, which orders events, until :meth:`PageServer.sample` closes a bucket of the
activity history. Live pages poll more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import httpx
import uvicorn
import uvloop
from live_server import NO_TLS, LiveServer
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.platform.console import live_charts
from fairserve.platform.console.pages import client, clients, cluster, interactions, refusals, run
from fairserve.platform.db.engine import connect
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.server.database import prepare_database
from fairserve.platform.server.lifecycle import Platform, build_app
from fairserve.platform.server.settings import Settings

LOOKING = (client, clients, cluster, interactions, live_charts, refusals, run)
"""Modules whose ``POLL_INTERVAL_S`` is the interval of a live page."""
POLL_INTERVAL_S = 0.1
DEADLINE_S = 90


class PageServer(LiveServer):
    """A server that starts on entering and stops on leaving; ``settings`` are those of the server."""

    def __init__(self, folder, *, workers=2, kv_blocks=512, port=0, **settings):
        super().__init__(folder)
        self.port = port
        self.workers = [ScriptedWorker(kv_blocks, BUILTIN_MODEL_NAME) for _ in range(workers)]
        self.settings = Settings(
            data_dir=folder / "data",
            worker_urls=tuple(worker.url for worker in self.workers),
            admin_key=self.admin_key,
            **{"usage_rollup_interval_s": 0.2, **settings},
        )
        self.platform = None
        self.threads = ThreadPoolExecutor(thread_name_prefix="calls that are held")
        self._now_s = 1000 * BUCKET_S
        self._started = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.callback(self.threads.shutdown)
            for worker in self.workers:
                stack.callback(worker.close)
            for module in LOOKING:
                stack.enter_context(mock.patch.object(module, "POLL_INTERVAL_S", POLL_INTERVAL_S))
            self.folder.joinpath("data").mkdir(exist_ok=True)
            engine = connect(self.settings.db.effective_database_url)
            stack.callback(engine.dispose)
            prepare_database(self.settings.db, engine)
            self.platform = Platform(self.settings, engine=engine, clock=self._clock)
            listener = stack.enter_context(
                socket.create_server(("127.0.0.1", self.port), backlog=128)
            )
            self.port = listener.getsockname()[1]
            thread = threading.Thread(target=self._run, args=(listener,), name="page server")
            thread.start()
            stack.callback(self._stop, thread)
            eventually(self._is_ready, "the server does not become ready")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()
        self._clients.close()

    def log(self):
        return "its log is among those of the test"

    # --- its thread -------------------------------------------------------------------------------

    def _run(self, listener):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener):
        self._loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            build_app(self.settings, self.platform),
            http="httptools",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._started.set()
        await self._server.serve(sockets=[listener])

    def _is_ready(self):
        try:
            return httpx.get(f"{self.url}/health/readiness", verify=NO_TLS).status_code == 200
        except httpx.TransportError:
            return False

    def _stop(self, thread):
        assert self._started.wait(DEADLINE_S)
        for worker in self.workers:
            worker.release()
        self._loop.call_soon_threadsafe(self.platform.draining.set)  # ends live pages
        self._server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()

    # --- events -----------------------------------------------------------------------------------

    def _clock(self):
        self._now_s += 1e-6
        return self._now_s

    def sample(self):
        """Let the time of a bucket pass on control's clock, and take its sample."""

        async def take():
            self._now_s += BUCKET_S
            assert await self.platform.monitoring.history.take() is not None

        asyncio.run_coroutine_threadsafe(take(), self._loop).result(DEADLINE_S)

    def holding(self):
        """Return the number of calls that the workers have held so far."""
        return sum(len(worker.holding) for worker in self.workers)

    def release(self):
        """Release the calls that are held on the workers."""
        for worker in self.workers:
            worker.release()
