"""The gRPC server of the picker: external processing and health, over TLS or in plain text.

Cost of a message: 0.05 to 0.15 ms for gRPC, half of it in the kernel, beside that of the decision: a
thread of the library wakes the event loop for each message that is read and for each that is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from fairserve.platform.picker.certificate import read_certificate, self_signed
from fairserve.platform.picker.exchange import Context, PickerExchange, PickerParts
from fairserve.platform.picker.health import PickerHealth
from fairserve.platform.picker.protocol import messages_pb2 as pb
from fairserve.platform.picker.protocol.services import EXTERNAL_PROCESSOR, PROCESS
from fairserve.platform.picker.settings import PickerSettings

logger = logging.getLogger(__name__)

Handler = Callable[[object, Any], Coroutine[Any, Any, None]]
"""Handles a stream: its requests, which are read from the context, and the context."""
MAX_MESSAGE_MARGIN_BYTES = 1024 * 1024
"""Bytes of a message beside the body in it: headers and framing."""
MAX_PENDING_STREAMS = 1_000_000
"""More than gateways send at a time."""
MAX_PENDING_S = 3600
"""Longest wait of a stream for Python, in seconds. By default gRPC cancels it after 30 s, and its client
gets 503: thousands of calls that arrive at once on a busy machine wait longer."""
STOP_S = 5.0
"""Seconds that exchanges may take to end after the drain."""


class BackgroundTasks:
    """Tasks that outlive their exchange by a probe of the worker. They are awaited at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine; a failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the end of a call was not reported", exc_info=error)

    async def finish(self) -> None:
        """Wait for all tasks."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class PickerServer:
    """Serves gateways. Belongs to the event loop that starts it."""

    def __init__(
        self,
        host: str,
        settings: PickerSettings,
        parts: PickerParts,
        is_ready: Callable[[], bool],
        background: BackgroundTasks,
    ) -> None:
        """``background`` has the tasks of ``parts``."""
        self._host, self._settings = host, settings
        self._parts = parts
        self._background = background
        self.port = 0
        """Port that it listens on once it has started."""
        self._server = _processor_server(
            self._process,
            parts.max_body_bytes,
            ("grpc.so_reuseport", 0),
            # Gateways send pings on idle connections.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        )
        self._server.add_generic_rpc_handlers((PickerHealth(is_ready).handler(),))

    async def start(self) -> None:
        """Listen. Raises OSError if a file cannot be read, or the port is in use."""
        own = self._settings
        host = f"[{self._host}]" if ":" in self._host else self._host
        address = f"{host}:{own.picker_port}"
        try:
            if own.picker_tls == "off":
                self.port = self._server.add_insecure_port(address)
            else:
                credentials = grpc.ssl_server_credentials([self._certificate()])
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"the picker cannot listen on {address}: {error}") from error
        await self._server.start()

    def _certificate(self) -> tuple[bytes, bytes]:
        folder = self._settings.tls_folder
        return self_signed(self._host) if folder is None else read_certificate(folder)

    async def stop(self) -> None:
        """End all exchanges, and wait until their ends are reported."""
        await self._server.stop(STOP_S)
        await self._background.finish()

    async def _process(self, requests: object, context: Context) -> None:
        await PickerExchange(self._parts, context).run()


def _processor_server(
    process: Handler, max_body_bytes: int, *options: tuple[str, int]
) -> grpc.aio.Server:
    """Return a server of external processing, without an address, that is not started yet.

    ``process`` handles the stream of one request; ``options`` are further ones of gRPC.
    """
    max_bytes = max_body_bytes + MAX_MESSAGE_MARGIN_BYTES
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", 2**31 - 1),
            # A burst of calls waits for the event loop; gRPC would cancel what exceeds 1,000.
            ("grpc.server.max_pending_requests", MAX_PENDING_STREAMS),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_STREAMS),
            ("grpc.server_max_unrequested_time_in_server", MAX_PENDING_S),
            *options,
        ]
    )
    # Answers are serialised where they are made: a chunk's from a message that is kept.
    handler = grpc.stream_stream_rpc_method_handler(process, pb.ProcessingRequest.FromString)
    services = grpc.method_handlers_generic_handler(EXTERNAL_PROCESSOR, {PROCESS: handler})
    server.add_generic_rpc_handlers((services,))
    return server
