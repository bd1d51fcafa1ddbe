"""Deliver an answer to its client, directly or through a buffer that can be replayed.

A producer (:mod:`fairserve.platform.serving.completions.producer`) writes to a :class:`Sink`.
Directly, the sink is the connection, and a client that disconnects cancels the producer, whatever it
is doing at that moment. With an ``Idempotency-Key`` the sink is a buffer: the producer belongs to
the server, and any number of connections read along, from the beginning.

A client that reads slowly must not hold the worker and the lease of its call: a bounded buffer lies
between the two, and a client that makes its call wait for too long loses its connection, which cancels
the call (:class:`ConnectionSink`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

PIECE_BYTES = 64 * 1024
"""Bytes that are sent to a connection at a time; the time limit of a write is for this many."""
ABORT_S = 5.0
"""Seconds to wait at most for an aborted connection."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of a client's lag behind its answer."""

    buffer_bytes: int = 256 * 1024
    write_timeout_s: float = 30.0


SendNow = Callable[[bytes], bool]
"""Sends a part of the body in this moment; returns False if the connection does not take it now."""
SEND_NOW = "fairserve.send_now"
"""Name of that function in the scope of a request; a server may lack it."""


class SlowClientError(Exception):
    """The client reads too slowly and gets nothing more."""


class AnswerReader(Protocol):
    """Gets the answer of one call."""

    on_space: Callable[[], None]
    """Called when :attr:`is_full` has ended."""

    @property
    def lost(self) -> str:
        """Reason for which it was disconnected; empty: it was not."""
        ...

    @property
    def is_full(self) -> bool:
        """True while it lags too far behind."""
        ...

    def write(self, body: bytes) -> None:
        """Take more of the answer. Never waits."""
        ...


class Sink(AnswerReader, Protocol):
    """Gets an answer with its head."""

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Take the head, once, before anything else."""
        ...


class ConnectionSink:
    """The client's connection behind a bounded buffer, which :meth:`run` empties.

    A client is disconnected if it reads none of ``PIECE_BYTES`` for ``write_timeout_s``, or if
    its full buffer has made the writer wait for so long in all: a client that reads a little at times
    would otherwise hold its worker without a limit.

    With ``send_now`` what is written goes out in the same moment, as long as the client keeps up.
    """

    def __init__(
        self,
        send: Send,
        limits: ClientLimits,
        clock: Callable[[], float] = time.monotonic,
        send_now: SendNow | None = None,
    ) -> None:
        self.lost = ""
        self.on_space: Callable[[], None] = lambda: None
        self._send = send
        self._send_now = send_now
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lag_left_s = limits.write_timeout_s
        self._full_since_s = 0.0
        self._full_timer: asyncio.TimerHandle | None = None
        self._head: Message | None = None
        self._begun = False
        """The head was sent."""
        self._parts: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._finished = False
        self._too_slow = False
        self._wake: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """See :class:`AnswerReader`."""
        return self._full_timer is not None

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._head = {"type": "http.response.start", "status": status, "headers": raw}
        self._to_send()

    def write(self, body: bytes) -> None:
        """Send a part, or keep it until the connection takes it; see :class:`AnswerReader`."""
        if self._send_now is not None and self._begun and not self._parts and self._send_now(body):
            return
        self._parts.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes >= self._limits.buffer_bytes and self._full_timer is None:
            self._full_since_s = self._clock()
            self._full_timer = self._loop.call_later(self._lag_left_s, self._lagged)
        self._to_send()

    def _has_space(self) -> None:
        if self._full_timer is not None and self._buffered_bytes < self._limits.buffer_bytes:
            self._full_timer.cancel()
            self._full_timer = None
            self._lag_left_s -= self._clock() - self._full_since_s
            if self._lag_left_s <= 0:
                self._lagged()
            else:
                self.on_space()

    def _lagged(self) -> None:
        self._too_slow = True
        self._to_send()

    def _to_send(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def finish(self) -> None:
        """Mark the answer as complete: :meth:`run` ends once it is sent."""
        self._finished = True
        self._to_send()

    async def run(self) -> None:
        """Send the written parts until the answer is complete. Raises SlowClientError."""
        try:
            while True:
                if self._too_slow:
                    raise self._disconnect()
                if self._head is not None:
                    head, self._head = self._head, None
                    await self._in_time(head)
                    self._begun = True
                elif self._parts:
                    piece = self._next_piece()
                    await self._in_time(_body(piece, more=bool(self._parts) or not self._finished))
                    if self._finished and not self._parts:
                        return
                    self._has_space()
                elif self._finished:
                    await self._in_time(_body(b"", more=False))
                    return
                else:
                    self._wake = self._loop.create_future()
                    await self._wake
        finally:
            if self._full_timer is not None:
                self._full_timer.cancel()

    async def _in_time(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._send(message)
        except TimeoutError:
            raise self._disconnect() from None

    def _next_piece(self) -> bytes:
        """Remove and return up to ``PIECE_BYTES`` of the buffer, as a rule all of it."""
        taken: list[bytes] = []
        left = PIECE_BYTES
        while self._parts and left > 0:
            part = self._parts.popleft()
            if len(part) > left:
                self._parts.appendleft(part[left:])
                part = part[:left]
            taken.append(part)
            left -= len(part)
        piece = b"".join(taken)
        self._buffered_bytes -= len(piece)
        return piece

    def _disconnect(self) -> SlowClientError:
        self.lost = f"the client did not read its answer for {self._limits.write_timeout_s:g} s"
        return SlowClientError(self.lost)


def _body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


class AnswerBuffer:
    """An answer that is kept. Readers wait for parts that are not written yet."""

    is_full = False

    def __init__(self) -> None:
        self.lost = ""
        self.on_space: Callable[[], None] = lambda: None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.size_bytes = 0
        self.finished = False
        self._parts: list[bytes] = []
        self._changed: asyncio.Future[None] | None = None

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the head."""
        self.status, self.headers = status, headers
        self._notify()

    def write(self, body: bytes) -> None:
        """Keep a part."""
        self._parts.append(body)
        self.size_bytes += len(body)
        self._notify()

    def finish(self) -> None:
        """Mark the answer as complete; later readers get it in one piece."""
        self.finished = True
        self._parts = [b"".join(self._parts)]
        self._notify()

    @property
    def body(self) -> bytes:
        """Return the whole body of a finished answer."""
        assert self.finished, "the answer is not complete"
        return self._parts[0]

    async def replay(self, sink: ConnectionSink, extra_headers: dict[str, str]) -> None:
        """Write all of it to a connection, following the producer until it finishes."""
        while not self.status:
            if self.finished:
                raise RuntimeError("the answer's producer ended without an answer")
            await self._change()
        sink.start(self.status, self.headers | extra_headers)
        space = asyncio.Event()
        sink.on_space = space.set
        async for part in self._read():
            sink.write(part)
            if sink.is_full:
                space.clear()
                await space.wait()

    async def _read(self) -> AsyncIterator[bytes]:
        """Yield the parts as they are written. O(1) for each part: an answer may have thousands."""
        number = sent_bytes = 0
        while True:
            while number < len(self._parts) and not self.finished:
                part = self._parts[number]
                number += 1
                sent_bytes += len(part)
                yield part
            if self.finished:
                if sent_bytes < self.size_bytes:
                    yield self._parts[0][sent_bytes:]
                return
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
    """Runs ``produce`` and watches the connection; a disconnect or a slow client cancels it."""

    def __init__(
        self,
        produce: Callable[[ConnectionSink], Awaitable[None]],
        limits: ClientLimits = ClientLimits(),
    ) -> None:
        super().__init__()
        self._produce = produce
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, as an ASGI application."""
        sink = ConnectionSink(send, self._limits, send_now=scope.get(SEND_NOW))
        sending = asyncio.create_task(sink.run())
        leaving = asyncio.create_task(_disconnected(receive))
        producing = asyncio.ensure_future(self._produce(sink))

        def produced(task: asyncio.Future[None]) -> None:
            if task.cancelled() or task.exception() is not None:
                sending.cancel()
            else:
                sink.finish()

        producing.add_done_callback(produced)
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if producing.done():
                producing.result()
            if sending.done():
                sending.result()
        except SlowClientError:
            await _ended(producing)
            _abort(scope)
            await asyncio.wait({leaving}, timeout=ABORT_S)
        finally:
            # Waited for, so that the call has ended in control when this request has.
            await _ended(producing, sending, leaving)


async def _ended(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _abort(scope: Scope) -> None:
    """Drop the connection with its unsent bytes: closed as usual, it would wait for the client."""
    abort = getattr(scope["app"].state, "abort_connection", None) if "app" in scope else None
    if abort is not None:
        abort(scope)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
