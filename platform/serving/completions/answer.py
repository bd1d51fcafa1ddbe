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

from starlette.types import Message, Receive, Scope, Send

from fairserve.platform.base.shared_limit import SharedLimit

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


def _nothing() -> None:
    """Do nothing."""


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

    def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Take head and body of an answer of which nothing else is written."""
        ...


class ConnectionSink:
    """The client's connection behind a bounded buffer.

    A client is disconnected if it reads none of ``PIECE_BYTES`` for ``write_timeout_s``, or if
    its full buffer has made the writer wait for so long in all: a client that reads a little at times
    would otherwise hold its worker without a limit.

    With ``send_now`` what is written goes out in the same moment, as long as the client keeps up. What
    does not is sent by a task, which ends with the buffer empty.
    """

    def __init__(
        self,
        send: Send,
        limits: ClientLimits,
        clock: Callable[[], float] = time.monotonic,
        send_now: SendNow | None = None,
        on_failure: Callable[[], None] = _nothing,
    ) -> None:
        """``on_failure`` is called once if the answer cannot be sent: see :attr:`failure`."""
        self.lost = ""
        self.failure: Exception | None = None
        """SlowClientError, or the error of the server."""
        self.on_space: Callable[[], None] = _nothing
        self._send = send
        self._send_now = send_now
        self._on_failure = on_failure
        self._limits = limits
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lag_left_s = limits.write_timeout_s
        self._full_since_s = 0.0
        self._full_timer: asyncio.TimerHandle | None = None
        self._head: Message | None = None
        self._parts: deque[bytes | memoryview] = deque()
        self._buffered_bytes = 0
        self._finished = False
        self._ended = False
        """The end of the answer was sent."""
        self._too_slow = False
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """See :class:`AnswerReader`."""
        return self._full_timer is not None

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Take the head, which is sent with the first part."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._head = {"type": "http.response.start", "status": status, "headers": raw}

    def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Take a whole answer; see :class:`Sink`."""
        self.start(status, headers)
        self._parts.append(body)
        self._buffered_bytes += len(body)

    def write(self, body: bytes) -> None:
        """Send a part, or keep it until the connection takes it; see :class:`AnswerReader`."""
        idle = self._sending is None and self._head is None and self.failure is None
        if idle and self._send_now is not None and self._send_now(body):
            return
        self._parts.append(body)
        self._buffered_bytes += len(body)
        if self._buffered_bytes >= self._limits.buffer_bytes and self._full_timer is None:
            self._full_since_s = self._clock()
            self._full_timer = self._loop.call_later(self._lag_left_s, self._lagged)
        if self._sending is None and self.failure is None:
            self._sending = self._loop.create_task(self._send_beside())

    async def finish(self) -> None:
        """Send the rest of a complete answer. Raises SlowClientError."""
        self._finished = True
        if self._sending is not None:
            await self._sending
        if self.failure is not None:
            raise self.failure
        await self._send_buffered()

    def close(self) -> None:
        """Send nothing more."""
        for each in (self._full_timer, self._sending):
            if each is not None:
                each.cancel()

    async def _send_beside(self) -> None:
        """Send the buffer beside its writer."""
        try:
            await self._send_buffered()
        except Exception as error:
            self.failure = error
            self._on_failure()
        finally:
            self._sending = None

    async def _send_buffered(self) -> None:
        """Send the buffer, and the end of a complete answer. Raises SlowClientError."""
        while self._parts or (self._finished and not self._ended):
            piece = self._next_piece()
            self._ended = self._finished and not self._parts
            body = {"type": "http.response.body", "body": piece, "more_body": not self._ended}
            try:
                async with asyncio.timeout(self._limits.write_timeout_s):
                    if self._head is not None:
                        head, self._head = self._head, None
                        await self._send(head)
                    await self._send(body)
            except TimeoutError:
                raise self._disconnect() from None
            if self._ended:
                return
            self._has_space()
            if self._too_slow:
                raise self._disconnect()

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

    def _next_piece(self) -> bytes:
        """Remove and return up to ``PIECE_BYTES`` of the buffer, as a rule all of it."""
        taken: list[bytes | memoryview] = []
        left = PIECE_BYTES
        while self._parts and left > 0:
            part = self._parts.popleft()
            if len(part) > left:
                part = memoryview(part)  # its slices copy nothing
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


class AnswerBuffer:
    """An answer that is kept. Readers wait for parts that are not written yet.

    One that is not kept any more has only the parts that a reader still awaits.
    """

    is_full = False

    def __init__(self, limit: SharedLimit | None = None, owner: str = "") -> None:
        """``limit`` is that of the bytes of all answers in progress: beyond it, it is not kept."""
        self._limit, self._owner = limit, owner
        self.kept = True
        self.lost = ""
        self.on_space: Callable[[], None] = _nothing
        self.status = 0
        self.headers: dict[str, str] = {}
        self.size_bytes = 0
        """Bytes of all parts, also of those that are not kept."""
        self.finished = False
        self._parts: list[bytes] = []
        self._dropped = 0
        """Number of parts before the first of these."""
        self._readers: dict[object, int] = {}
        """Number of the next part of each reader."""
        self._awaits_reader = True
        """False once the first one has begun, for which the parts are there in any case."""
        self._changed: asyncio.Future[None] | None = None

    def start(self, status: int, headers: dict[str, str]) -> None:
        """Keep the head."""
        self.status, self.headers = status, headers
        self._notify()

    def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Keep a whole answer."""
        self.start(status, headers)
        self.write(body)

    def write(self, body: bytes) -> None:
        """Keep a part."""
        if self.kept and self._limit is not None and self._limit.take(self._owner, len(body)):
            self.forget(awaits_reader=self._awaits_reader)
        self._parts.append(body)
        self.size_bytes += len(body)
        self._drop()
        self._notify()

    def forget(self, *, awaits_reader: bool) -> None:
        """Keep no part that all have read: those who read now or, if none does yet, the first one."""
        if self.kept:
            self._release(self.size_bytes)
        self.kept, self._awaits_reader = False, awaits_reader
        self._drop()

    def finish(self) -> None:
        """Mark the answer as complete; later readers get it in one piece."""
        self.finished = True
        if self.kept:
            self._release(self.size_bytes)
            self._parts = [b"".join(self._parts)]
        self._notify()

    def _release(self, size_bytes: int) -> None:
        if self._limit is not None:
            self._limit.release(self._owner, size_bytes)

    def _drop(self) -> None:
        """Drop the parts that nobody will read."""
        if self.kept or self._awaits_reader:
            return
        end = self._dropped + len(self._parts)
        first = min(self._readers.values(), default=end)
        del self._parts[: first - self._dropped]
        self._dropped = first

    @property
    def whole_until_now(self) -> bool:
        """True while another reader can begin."""
        return self._dropped == 0

    @property
    def body(self) -> bytes:
        """Return the whole body of a finished answer."""
        assert self.finished, "the answer is not complete"
        assert self.kept, "it is not kept"
        return self._parts[0]

    async def replay(self, sink: ConnectionSink, extra_headers: dict[str, str]) -> None:
        """Write all of it to a connection, following the producer until it finishes.

        It must be :attr:`whole_until_now`.
        """
        assert self.whole_until_now, "its beginning is gone"
        reader = object()
        self._readers[reader] = 0
        self._awaits_reader = False
        try:
            while not self.status:
                if self.finished:
                    raise RuntimeError("the answer's producer ended without an answer")
                await self._change()
            sink.start(self.status, self.headers | extra_headers)
            space = asyncio.Event()
            sink.on_space = space.set
            async for part in self._read(reader):
                sink.write(part)
                if sink.is_full:
                    space.clear()
                    await space.wait()
        finally:
            del self._readers[reader]
            self._drop()

    async def _read(self, reader: object) -> AsyncIterator[bytes]:
        """Yield the parts as they are written. O(1) for each part: an answer may have thousands."""
        sent_bytes = 0
        while True:
            if self.finished and self.kept:
                if sent_bytes < self.size_bytes:
                    yield self._parts[0][sent_bytes:]
                return
            number = self._readers[reader] - self._dropped
            if number < len(self._parts):
                part = self._parts[number]
                self._readers[reader] += 1
                self._drop()
                sent_bytes += len(part)
                yield part
            elif self.finished:
                return
            else:
                await self._change()

    def _notify(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)


class ProducedResponse:
    """ASGI application that runs ``produce``; a disconnect or a slow client cancels it."""

    def __init__(
        self,
        produce: Callable[[ConnectionSink], Awaitable[None]],
        limits: ClientLimits = ClientLimits(),
    ) -> None:
        self._produce = produce
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. The call has ended in control when this returns."""
        request = asyncio.current_task()
        assert request is not None, "a request is a task"
        stopped = over = False

        def stop() -> None:
            nonlocal stopped
            if not stopped and not over:
                stopped = True
                request.cancel()

        sink = ConnectionSink(send, self._limits, send_now=scope.get(SEND_NOW), on_failure=stop)
        leaving = asyncio.create_task(_disconnected(receive, stop))
        try:
            await self._produce(sink)
            await sink.finish()
        except asyncio.CancelledError:
            if not stopped or request.uncancel():
                raise
            if sink.failure is not None and not sink.lost:
                raise sink.failure from None
        except SlowClientError:
            pass
        finally:
            over = True
            sink.close()
            if sink.lost:
                _abort(scope)
                await asyncio.wait({leaving}, timeout=ABORT_S)
            leaving.cancel()


def _abort(scope: Scope) -> None:
    """Drop the connection with its unsent bytes: closed as usual, it would wait for the client."""
    abort = getattr(scope["app"].state, "abort_connection", None) if "app" in scope else None
    if abort is not None:
        abort(scope)


async def _disconnected(receive: Receive, stop: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stop()
