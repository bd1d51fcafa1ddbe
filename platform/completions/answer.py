"""How an answer reaches its client: directly, or through a buffer that can be replayed.

A producer (:mod:`fairserve.platform.completions.producer`) writes to a :class:`Sink`. Directly, the
sink is the connection, and a client that disconnects cancels the producer, whatever it is doing at
that moment. With an ``Idempotency-Key`` the sink is a buffer: the producer belongs to the server,
and any number of connections read along, from the beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Produce = Callable[["Sink"], Coroutine[Any, Any, None]]


class Sink(Protocol):
    """Where an answer is written."""

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """The head, once, before anything else."""
        ...

    async def write(self, body: bytes) -> None:
        """More of the body; waits while the client is slower than we are."""
        ...


class ConnectionSink:
    """The client's connection."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, body: bytes) -> None:
        """Send a part."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self) -> None:
        """The answer is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class AnswerBuffer:
    """An answer that is kept. Readers wait for what has not been written yet."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.size_bytes = 0
        self.finished = False
        self._parts: list[bytes] = []
        self._changed: asyncio.Future[None] | None = None

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the head."""
        self.status, self.headers = status, headers
        self._notify()

    async def write(self, body: bytes) -> None:
        """Keep a part."""
        self._parts.append(body)
        self.size_bytes += len(body)
        self._notify()

    def finish(self) -> None:
        """Nothing more comes; later readers get it in one piece."""
        self.finished = True
        self._parts = [b"".join(self._parts)]
        self._notify()

    async def replay(self, sink: ConnectionSink, extra_headers: dict[str, str]) -> None:
        """Write all of it to a connection, following the producer until it finishes."""
        while not self.status:
            if self.finished:
                raise RuntimeError("the answer's producer ended without an answer")
            await self._change()
        await sink.start(self.status, self.headers | extra_headers)
        async for part in self._read():
            await sink.write(part)

    async def _read(self) -> AsyncIterator[bytes]:
        sent_bytes = 0
        while True:
            position = 0
            for part in list(self._parts):
                # Parts may have been joined since the last look: positions count bytes.
                if position + len(part) > sent_bytes:
                    yield part[max(0, sent_bytes - position) :]
                    sent_bytes = position + len(part)
                position += len(part)
            if self.finished and sent_bytes == self.size_bytes:
                return
            if sent_bytes == self.size_bytes:
                await self._change()

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)


class ProducedResponse(Response):
    """Runs ``produce`` while it watches the connection; a disconnect cancels it."""

    def __init__(self, produce: Callable[[ConnectionSink], Awaitable[None]]) -> None:
        super().__init__()
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application that this response is."""
        sink = ConnectionSink(send)
        producing = asyncio.ensure_future(self._produce(sink))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({producing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if producing.done():
                producing.result()
                await sink.finish()
        finally:
            leaving.cancel()
            producing.cancel()
            # Waited for, so that the call has ended in control when this request has.
            await asyncio.gather(leaving, producing, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
