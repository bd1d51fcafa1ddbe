"""uvicorn's HTTP protocol with the limits that uvicorn has no settings for.

One instance serves one connection. A client has a time limit for the head of a request (also for the
first one, so that an idle connection ends), and for its body a time limit that grows with what has
arrived. A head has at most 64 KiB. Connections are counted
(:mod:`fairserve.platform.server.http.connections`). What is rejected here never reaches the
application.

An answer may be complete before the body has arrived (401, 413). The rest is then read and discarded
within limits: a socket that is closed with unread data resets the connection, and the client may lose
the answer.

An upgrade (to HTTP/2, as Java's client asks by default, to a websocket, to TLS) is ignored: the request
and its body are those of HTTP/1.1. An answer to HTTP/1.0 has no chunks.

Cost per request: two timers. An ignored upgrade costs a second pass over the head. Weakness: a head or a
trailer that begins in the same 64 KiB as the end of the request before it may be twice as long.
"""

from __future__ import annotations

import asyncio
import http
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httptools
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fairserve.platform.base.client_address import client_address, is_trusted
from fairserve.platform.base.errors import (
    FairServeError,
    HeadTooLargeError,
    InvalidRequestError,
    RequestTimeoutError,
)
from fairserve.platform.server.http.connections import Connections
from fairserve.platform.serving.completions.answer import SEND_NOW

MAX_HEAD_BYTES = 64 * 1024
MIN_BODY_BYTES_PER_S = 64 * 1024
"""Bytes of a body whose arrival extends its time limit by a second."""
MAX_DISCARDED_BYTES = 16 * 1024 * 1024
"""Bytes that are read and discarded after an answer that ends the connection."""
MAX_PIPELINED = 32
"""Requests that wait on one connection for the answer before them."""


@dataclass(slots=True)
class RequestLimits:
    """Limits of every connection; a change applies to data that arrives after it."""

    max_body_bytes: int
    head_timeout_s: float = 10.0
    """Seconds from the connection, or the first byte, to the end of the headers; then 408."""
    body_timeout_s: float = 30.0
    """Seconds for the body, and one more for each 64 KiB that arrived; then 408."""
    max_head_bytes: int = MAX_HEAD_BYTES


class LimitedProtocol(HttpToolsProtocol):
    """Serves one connection within limits."""

    def __init__(
        self, *, connections: Connections, limits: RequestLimits, **uvicorn_arguments: Any
    ) -> None:
        super().__init__(**uvicorn_arguments)
        self._open_connections = connections
        self._limits = limits
        self._peer: str | None = None
        """Address that this connection is counted for; None while it is not counted."""
        self._is_proxy = False
        """True if requests are counted for their clients, and not the connection."""
        self._clients: deque[str] = deque()
        """Clients that the requests in progress are counted for, on a proxy's connection."""
        self._requests = 0
        self._in_head = True
        self._head_begun = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_bytes = 0
        self._body_began_s = 0.0
        self._body_timer: asyncio.TimerHandle | None = None
        self._bytes_without_body = 0
        """Bytes of chunk headers and trailers since the last byte of a body."""
        self._bytes_to_discard = 0
        """Bytes that may still arrive after an answer that ends the connection."""
        self._head_repeated = False
        """True while a new parser gets the head of a request again, without its upgrade."""

    # --- the connection ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or reject it with an answer."""
        super().connection_made(transport)
        peer = "" if self.client is None else self.client[0]
        rejected = self._open_connections.connect(peer)
        if rejected is not None:
            self._close_with(rejected)
            return
        self._peer = peer
        self._is_proxy = is_trusted(peer, self._open_connections.trusted_proxies)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and no longer count the connection."""
        self._stop_timers()
        if self._peer is not None:
            self._open_connections.disconnect(self._peer)
            self._peer = None
        while self._clients:
            self._request_ends()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it running after an error

    def _close_with(self, error: FairServeError) -> None:
        """Answer with an error and close, or only close while another answer is being sent."""
        self._stop_timers()
        self._answer_with(error)
        self.transport.close()

    def _end_with(self, error: FairServeError) -> None:
        """Answer with an error while the client still sends, unless another answer is being sent."""
        if self._answer_with(error):
            self.close_in_peace()
        else:
            self._close_with(error)

    def _answer_with(self, error: FairServeError) -> bool:
        """Write an error as the answer to the request that arrives, unless another one comes before.

        An application that still waits for the rest of the body has no client any more.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not self.awaits_body or cycle.response_started or self.pipeline:
                return False
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_response(error))
        return True

    def close_in_peace(self) -> None:
        """Close, but first discard what the client still sends, for a while."""
        self._stop_timers()
        if self.transport.is_closing() or self._bytes_to_discard:
            return
        self.transport.write_eof()
        self._bytes_to_discard = MAX_DISCARDED_BYTES
        self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self.transport.abort)
        self.flow.resume_reading()

    def _discard(self, data: bytes) -> None:
        self._bytes_to_discard -= len(data)
        if self._bytes_to_discard <= 0:
            self._stop_timers()
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed with an error in the API's shape."""
        self._end_with(InvalidRequestError(msg, code="malformed_request"))

    # --- received data ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Feed the parser in pieces that end at the limit of a head."""
        if self._bytes_to_discard:
            self._discard(data)
            return
        position = 0
        while position < len(data):
            max_head_bytes = self._limits.max_head_bytes
            size = max_head_bytes - self._head_bytes if self._in_head else max_head_bytes
            piece = data[position : position + size]
            position += len(piece)
            requests, was_in_head, body_bytes = self._requests, self._in_head, self._body_bytes
            self._parse(piece)
            if self.parser is None or self.transport.is_closing() or self._bytes_to_discard:
                return
            if self._in_head:
                whole = was_in_head and requests == self._requests
                self._head_bytes = self._head_bytes + len(piece) if whole else 0
                too_long = self._head_bytes >= max_head_bytes
            elif body_bytes == self._body_bytes:
                self._bytes_without_body += len(piece)
                too_long = self._bytes_without_body >= max_head_bytes
            else:
                self._bytes_without_body, too_long = 0, False
            if too_long:
                self._end_with(
                    HeadTooLargeError(
                        f"the head of the request is too long; allowed: {max_head_bytes} bytes"
                    )
                )
                return
            if len(self.pipeline) > MAX_PIPELINED or self._discards_too_much():
                self._stop_timers()
                self.transport.close()
                return
        self._watch()

    def _parse(self, data: bytes) -> None:
        """Feed the parser, and answer what it cannot parse."""
        self._unset_keepalive_if_required()
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    self._ignore_upgrade()
                    data = data[upgrade.args[0] :]
        except httptools.HttpParserError:
            part = "body" if self.awaits_body else "head"
            self.send_400_response(f"the {part} of the request is not that of HTTP/1.1")

    def _ignore_upgrade(self) -> None:
        """Replace the parser, which stops at the head, by one that reads the body after it."""
        version = self.parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        head = [b"POST / HTTP/" + version]
        head += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self._head_repeated = True
        self.parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n")
        self._head_repeated = False

    def _watch(self) -> None:
        """Set the timer for the next expected data."""
        if not self._in_head:
            # Before the application runs, and only if a part of the body may remain unread.
            self.cycle.transport = _AnswerTransport(self)  # type: ignore[assignment] # its methods
            if self._body_timer is None:
                self._body_timer = self.loop.call_later(
                    self._limits.body_timeout_s, self._body_overdue
                )
        elif self._head_begun or self._head_bytes:
            self._await_head()
        elif self.cycle is not None and self.cycle.response_complete:
            # uvicorn stops its own timer when data arrives, even discarded data.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        """Note the first byte of a head."""
        if self._head_repeated:
            return
        self._head_begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Count a proxied request for its client, and start it."""
        if self._head_repeated:
            return
        self._requests += 1
        self._in_head, self._head_begun, self._head_bytes = False, False, 0
        self._stop_timers()
        self._body_bytes, self._bytes_without_body = 0, 0
        self._body_began_s = self.loop.time()
        app = self.app
        if self._peer is not None and self._is_proxy:
            client = client_address(self.scope, self._open_connections.trusted_proxies)
            rejected = self._open_connections.begin(client)
            if rejected is None:
                self._clients.append(client)
            else:
                self._clients.append("")
                self.app = _rejecting(rejected)
        unchunked = None
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False
            self.app = unchunked = _UnchunkedAnswer(self.app)
        try:
            super().on_headers_complete()
        finally:
            self.app = app
        if unchunked is not None:
            unchunked.cycle = self.cycle
        if self._open_connections.closing:
            self.cycle.keep_alive = False
        self.cycle.scope[SEND_NOW] = _SendNow(self.cycle)  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        """Keep a part of the URL."""
        if not self._head_repeated:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, as uvicorn does; ignore trailers, which are not checked."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """Count a part of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timers: the whole request has arrived."""
        if self.parser.should_upgrade():  # the parser stops here; the body is still to come
            return
        self._in_head, self._head_bytes = True, 0
        self._stop_timers()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Stop counting a proxied request for its client."""
        if self._clients:
            self._request_ends()
        if not self._bytes_to_discard:
            super().on_response_complete()

    def _request_ends(self) -> None:
        client = self._clients.popleft()
        if client:  # else it was rejected
            self._open_connections.end(client)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its client never read the last answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    @property
    def awaits_body(self) -> bool:
        """True while a part of the last request's body has not arrived."""
        return not self._in_head

    # --- timers -----------------------------------------------------------------------------------

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_timeout_s, self._head_overdue)

    def _head_overdue(self) -> None:
        self._head_timer = None
        if self.flow.read_paused:  # an answer before it is being sent: the client is not late
            self._await_head()
        elif self._head_begun:
            self._close_with(self._timed_out("head", self._limits.head_timeout_s))
        else:  # a browser's spare connection
            self.transport.close()

    def _body_overdue(self) -> None:
        if self.flow.read_paused:  # the server does not read: the client is not late
            self._body_began_s = self.loop.time()
        waited_s = self.loop.time() - self._body_began_s
        allowed_s = self._limits.body_timeout_s + self._body_bytes / MIN_BODY_BYTES_PER_S
        if waited_s < allowed_s:
            left_s = allowed_s - waited_s
            self._body_timer = self.loop.call_later(left_s, self._body_overdue)
            return
        self._body_timer = None
        self._close_with(self._timed_out("body", allowed_s))

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._body_timer = None

    def _discards_too_much(self) -> bool:
        """Return whether the rest of an answered body exceeds the largest size of a body."""
        answered = self.cycle is not None and self.cycle.response_complete
        return not self._in_head and answered and self._body_bytes > self._limits.max_body_bytes

    @staticmethod
    def _timed_out(what: str, allowed_s: float) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"the {what} of the request did not arrive within {allowed_s:g} s; send it again"
        )


class _AnswerTransport:
    """The connection of an answer that is sent before the body of its request has arrived."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        """Close at once only if the whole body has arrived, or the answer broke off."""
        if self._protocol.awaits_body and self._protocol.cycle.response_complete:
            self._protocol.close_in_peace()
        else:
            self._protocol.transport.close()


class _SendNow:
    """Sends a part of a chunked answer whose head was sent, if its client keeps up."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = weakref.ref(cycle)  # its scope has this object: a request leaves no garbage

    def __call__(self, body: bytes) -> bool:
        """Send a part that is not empty; return False if it has to wait."""
        cycle = self._cycle()
        if (
            cycle is None
            or cycle.flow.write_paused
            or cycle.disconnected
            or not cycle.chunked_encoding
        ):
            return False
        cycle.transport.write(b"%x\r\n%s\r\n" % (len(body), body))
        return True


class _UnchunkedAnswer:
    """The application for HTTP/1.0: an answer of unknown length ends with the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.cycle: RequestResponseCycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        cycle, has_length = self.cycle, True

        async def unchunked(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                has_length = b"content-length" in names
                if not has_length:
                    cycle.chunked_encoding = False
            elif not has_length:  # uvicorn counts what the length has promised
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, unchunked)


def _rejecting(error: FairServeError) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an application that answers with the error and reads nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = orjson.dumps(error.body())
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        headers |= {name.lower(): value for name, value in error.headers.items()}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": error.status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    return app


def _response(error: FairServeError) -> bytes:
    """Return a whole answer that ends the connection."""
    body = orjson.dumps(error.body())
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    headers |= {name.lower(): value for name, value in error.headers.items()}
    headers["connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    reason = http.HTTPStatus(error.status).phrase
    return f"HTTP/1.1 {error.status} {reason}\r\n{lines}\r\n".encode("latin-1") + body
