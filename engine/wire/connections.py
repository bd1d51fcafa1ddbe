"""HTTP/1.1 connections to workers: requests go out, answers come in by callbacks.

A connection carries one request at a time and is kept for the next one. Its bytes are handled where
they arrive: the parser (httptools) calls the answer, without a task and without a queue between.
Redirects are not followed, and no coding is accepted: a request and its token reach the named address
only, and the bytes of an answer are its content.

Weakness: a worker may close a kept connection at the moment in which a request is sent; the request then
fails. Idle connections are closed after ``IDLE_S``, before workers do it (uvicorn: 5 s).
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import Mapping
from typing import cast
from urllib.parse import unquote, urlsplit

import httptools

from fairserve.engine.wire.base import HttpAnswer

CONNECT_S = 5.0
IDLE_S = 4.0
MAX_HEAD_BYTES = 64 * 1024
"""Largest head of an answer, and the largest trailer."""


class _Exchange:
    """One request and its answer. May be closed, paused and resumed at any time."""

    def __init__(self, answer: HttpAnswer, request: bytes) -> None:
        self._answer: HttpAnswer | None = answer
        self._request = request
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._paused = False

    def close(self) -> None:
        """Want nothing more; a worker that still works on the request sees the end of the connection."""
        self._answer = None
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abandon()

    def pause(self) -> None:
        """Read nothing until :meth:`resume`, so that the worker has to wait."""
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._connection is not None:
            self._connection.resume()

    def expect_end(self) -> None:
        """Take that the answer is complete, though its last bytes may not have arrived."""
        self._answer = None
        if self._connection is not None:
            self._connection.expect_end()

    def begin(self, connection: _Connection) -> None:
        """Send the request."""
        self._connecting = None
        if self._answer is None:
            connection.abandon()
            return
        self._connection = connection
        connection.exchange = self
        connection.write(self._request)
        self._request = b""
        if self._paused:
            connection.pause()

    def connect_in(self, connecting: asyncio.Task[None]) -> None:
        """Wait for a connection."""
        self._connecting = connecting

    # --- the connection ---------------------------------------------------------------------------

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Pass on the head."""
        if self._answer is not None:
            self._answer.head(status, headers)

    def data(self, data: bytes) -> None:
        """Pass on a part of the body; one after the answer's end is too much."""
        if self._answer is not None:
            self._answer.data(data)
        elif self._connection is not None:
            self._connection.abandon()

    def end(self) -> None:
        """Pass on the end."""
        self._connection = None
        if (answer := self._answer) is not None:
            self._answer = None
            answer.end()

    def lost(self, why: str, *, unreachable: bool = False) -> None:
        """Pass on the loss."""
        self._connection = self._connecting = None
        if (answer := self._answer) is not None:
            self._answer = None
            answer.lost(why, unreachable=unreachable)


class Origin:
    """Scheme, host, port and credentials of a URL, and the head that its requests share."""

    def __init__(self, url: str) -> None:
        """``url`` may have a path, which precedes that of each request, and credentials."""
        parts = urlsplit(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        self.path = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.name = host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"
        self.authorization = ""
        """Value of the header for the credentials of the URL; empty without them."""
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.authorization = "Basic " + base64.b64encode(user.encode()).decode()

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return a request. Raises ValueError for a header that would be two."""
        own = {"host": self.name, "accept-encoding": "identity", "content-length": str(len(body))}
        if self.authorization:
            own["authorization"] = self.authorization
        lines = [f"{name}: {value}" for name, value in {**own, **headers}.items()]
        head = f"POST {self.path}{path} HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        if head.count("\n") != len(lines) + 2:
            raise ValueError("a header has a line break")
        return head.encode("latin-1", "replace") + body


class WorkerConnections:
    """Kept connections by origin. Belongs to one event loop; :meth:`close` ends them."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int, bool], deque[_Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None

    def send(self, origin: Origin, request: bytes, answer: HttpAnswer) -> _Exchange:
        """Send a request over a kept connection, or a new one."""
        exchange = _Exchange(answer, request)
        kept = self._idle.get((origin.host, origin.port, origin.tls))
        while kept:
            connection = kept.pop()
            if connection.is_usable():
                exchange.begin(connection)
                return exchange
        connecting = asyncio.get_running_loop().create_task(self._connect(origin, exchange))
        exchange.connect_in(connecting)
        return exchange

    async def _connect(self, origin: Origin, exchange: _Exchange) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, (origin.host, origin.port, origin.tls)),
                    origin.host,
                    origin.port,
                    ssl=self._context() if origin.tls else None,
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {CONNECT_S:g} s"
            exchange.lost(f"no connection to {origin.name}: {reason}", unreachable=True)
            return
        exchange.begin(connection)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def keep(self, connection: _Connection) -> None:
        """Keep a connection whose answer is complete."""
        self._idle.setdefault(connection.key, deque()).append(connection)
        if self._sweep is None:
            self._sweep = connection.loop.call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        """Close what has been idle for long, and look again later while something is kept."""
        self._sweep = None
        for key, kept in [*self._idle.items()]:
            while kept and not kept[0].is_usable():
                kept.popleft()
            if not kept:
                del self._idle[key]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S / 4, self._close_idle)

    def close(self) -> None:
        """Close the kept connections; those in use end with their exchange."""
        if self._sweep is not None:
            self._sweep.cancel()
        for kept in self._idle.values():
            for connection in kept:
                connection.abandon()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, pool: WorkerConnections, key: tuple[str, int, bool]) -> None:
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.exchange: _Exchange | None = None
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._idle_until_s = 0.0
        self._end_timer: asyncio.TimerHandle | None = None
        self._reset()

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        """Parts of the body in the data that is parsed."""
        self.on_body = self._body.append  # called by the parser, for each token of a stream
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        """Bytes since the last part of the body: of the head, a trailer, or the frame of a chunk."""
        self._in_head = True
        self._ends_with_connection = False
        self._complete = self._keeps_alive = False

    # --- the exchange -----------------------------------------------------------------------------

    def write(self, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None
        self._transport.write(request)

    def is_usable(self) -> bool:
        """Return whether the next request may be sent; close the connection if it has idled long."""
        if self._transport is None or self._transport.is_closing():
            return False
        if self.loop.time() >= self._idle_until_s:
            self.abandon()
            return False
        return True

    def abandon(self) -> None:
        """Close the connection at once."""
        self.exchange = None
        if self._transport is not None:
            self._transport.abort()

    def expect_end(self) -> None:
        """Wait for the end of an answer of which nobody wants more, for a while."""
        self.resume()
        if not self._complete:
            self._end_timer = self.loop.call_later(IDLE_S, self.abandon)

    def pause(self) -> None:
        """Read nothing."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not derived from it

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, and pass it on."""
        exchange = self.exchange
        if exchange is None:  # an idle connection has nothing to say
            self.abandon()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abandon()
            exchange.lost(f"its answer is not HTTP: {error}")
            return
        self._head_bytes = 0 if self._body else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.abandon()
            part = "head" if self._in_head else "trailer"
            exchange.lost(f"the {part} of its answer is over {MAX_HEAD_BYTES} bytes")
            return
        if self._body:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            exchange.data(body)
        if self._complete and self.exchange is exchange:
            self._end(exchange)

    def _end(self, exchange: _Exchange) -> None:
        """End the exchange, and keep the connection for the next one."""
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        self.exchange = None
        if self._keeps_alive and not self._ends_with_connection:
            self.resume()
            self._reset()
            self._idle_until_s = self.loop.time() + IDLE_S
            self._pool.keep(self)
        else:
            self.abandon()
        exchange.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: a body without a length ends so, any other answer is broken."""
        self._transport = None
        if self._end_timer is not None:
            self._end_timer.cancel()
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        if exc is None and self._ends_with_connection:
            exchange.end()
        else:
            text = (
                f"{type(exc).__name__}: {exc}" if exc is not None else "the connection was closed"
            )
            exchange.lost(text)

    # --- the parser -------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are ignored."""
        if self._in_head:
            key = name.decode("latin-1").lower()
            known = self._headers.get(key)
            text = value.decode("latin-1")
            self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        """Pass on the head, unless it is informational."""
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._in_head = False
        headers = self._headers
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._ends_with_connection = not chunked and "content-length" not in headers
        if self.exchange is not None:
            self.exchange.head(status, headers)

    def on_message_complete(self) -> None:
        """Note the end of an answer; an informational one is followed by another."""
        if self._in_head:
            self._headers = {}
        else:
            self._complete = True
            self._keeps_alive = self._parser.should_keep_alive()
