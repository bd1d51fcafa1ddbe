"""A port of its own for ``/metrics``, without a key: for scrapers of the same host or network."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to the server of the API."""
        yield


@contextlib.asynccontextmanager
async def serving_metrics(app: ASGIApp, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serve the application on the socket within the block; without a socket do nothing."""
    if listener is None:
        yield
        return
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=16,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="metrics")
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
