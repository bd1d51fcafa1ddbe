"""The whole server on a port of this process, for pages, with two scripted workers behind it.

Control's clock advances by a microsecond each time that it is read, which orders events, until
:meth:`PageServer.sample` closes a bucket of the activity history. Live pages poll more often.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import httpx
from scripted_worker import ScriptedWorker
from served_app import served
from server_client import DEADLINE_S, NO_TLS
from whole_server import WholeServer

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.platform.console import live_charts
from fairserve.platform.console.pages import (
    alarms,
    client,
    clients,
    cluster,
    interactions,
    refusals,
    run,
)
from fairserve.platform.monitoring.activity import BUCKET_S

LOOKING = (alarms, client, clients, cluster, interactions, live_charts, refusals, run)
"""Modules whose ``POLL_INTERVAL_S`` is the interval of a live page."""
POLL_INTERVAL_S = 0.1


class PageServer(WholeServer):
    """A server that starts on entering and stops on leaving; ``settings`` are those of the server."""

    def __init__(self, folder, *, kv_blocks=512, port=0, **settings):
        self._now_s = 1000 * BUCKET_S
        self._port = port
        worker = functools.partial(ScriptedWorker, kv_blocks, BUILTIN_MODEL_NAME)
        settings = {"workers": 2, **settings}
        super().__init__(folder / "data", worker=worker, clock=self._clock, **settings)

    def __enter__(self):
        for module in LOOKING:
            self._stack.enter_context(mock.patch.object(module, "POLL_INTERVAL_S", POLL_INTERVAL_S))
        self.threads = ThreadPoolExecutor(thread_name_prefix="calls that are held")
        self._stack.callback(self.threads.shutdown)
        super().__enter__()
        self.url = self._stack.enter_context(served(self.client, self._port))
        self._stack.callback(self._end_streams)
        http = httpx.Client(base_url=self.url, timeout=DEADLINE_S, verify=NO_TLS)
        self.http = self._stack.enter_context(http)
        return self

    def _end_streams(self):
        self.release()
        self.client.portal.call(self.platform.draining.set)  # ends live pages

    # --- events -----------------------------------------------------------------------------------

    def _clock(self):
        self._now_s += 1e-6
        return self._now_s

    def sample(self):
        """Let the time of a bucket pass on control's clock, and take its sample."""

        async def take():
            self._now_s += BUCKET_S
            assert await self.platform.monitoring.history.take() is not None

        self.client.portal.call(take)

    def holding(self):
        """Return the number of calls that the workers have held so far."""
        return sum(len(worker.holding) for worker in self.workers)

    def release(self):
        """Release the calls that are held on the workers."""
        for worker in self.workers:
            worker.release()
