"""The body of a request: decompressed, counted, its memory reserved, and rejected beyond its limit.

A compressed body is decompressed as it arrives, and its limit is that of the plain body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.server.http.decoding import Decoding, coding_of
from fairserve.platform.serving.bodies import BodyReservation, check_body_size


def close_after(error: FairServeError) -> None:
    """Have the answer with this error end the connection: the body is not read."""
    error.headers = {**error.headers, "Connection": "close"}


def declared_bytes(scope: Scope) -> int | None:
    """Return the declared size of the body; 0 if it is sent in chunks, None if there is no body."""
    chunked = False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value) or None
        chunked = chunked or name == b"transfer-encoding"
    return 0 if chunked else None


class RequestBody:
    """The body of one request."""

    def __init__(
        self,
        receive: Receive,
        max_bytes: int,
        reservation: BodyReservation,
        *,
        decoding: Decoding | None = None,
        held_bytes: int | None = None,
    ) -> None:
        """``held_bytes`` of the body are in memory at most; None: all of it."""
        self._receive = receive
        self._max_bytes = max_bytes
        self._held_bytes = max_bytes if held_bytes is None else held_bytes
        self._received_bytes = 0
        self._decoding = decoding
        self._pieces: Iterator[bytes] = iter(())
        self._coded_bytes = 0
        self._last = False
        """True if the last part of a compressed body has arrived."""
        self.reservation = reservation
        self.rejected: FairServeError | None = None
        """The error that rejects the request, once it is known."""

    def expect(self, size_bytes: int) -> None:
        """Reserve a size that the client declares, or that has arrived. Raises a FairServeError."""
        what = "body" if self._decoding is None else "decompressed body"
        check_body_size(size_bytes, self._max_bytes, what)
        held_bytes = min(size_bytes, self._held_bytes)
        if self._decoding is not None:  # its window fills with the output
            held_bytes += min(size_bytes, self._decoding.memory_bytes)
        self.reservation.grow(held_bytes)

    async def read(self) -> bytes:
        """Return the whole body. Raises the error that rejects it, or ClientDisconnect."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def receive(self) -> Message:
        """Return the next part. Raises the error that rejects the request."""
        try:
            if self._decoding is not None:
                return await self._decoded(self._decoding)
            message = await self._receive()
            if message["type"] == "http.request":
                self._received_bytes += len(message.get("body", b""))
                if self._received_bytes > self.reservation.size_bytes:
                    self.expect(self._received_bytes)
            return message
        except FairServeError as error:
            close_after(error)
            self.rejected = error
            raise

    async def _decoded(self, decoding: Decoding) -> Message:
        """Return the next piece of a compressed body, as one of a plain body."""
        while True:
            piece = next(self._pieces, b"")
            if piece:
                self._received_bytes += len(piece)
                self.expect(self._received_bytes)
                await asyncio.sleep(0)  # the pieces of one part would otherwise come at once
                return {"type": "http.request", "body": piece, "more_body": True}
            if self._last:
                self._decoding = None
                self.reservation.shrink(min(self._received_bytes, self._held_bytes))
                return {"type": "http.request", "body": b"", "more_body": False}
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            part = message.get("body", b"")
            self._coded_bytes += len(part)
            check_body_size(self._coded_bytes, self._max_bytes)
            self._last = not message.get("more_body", False)
            self._pieces = decoding.pieces(part, last=self._last)


def decoding_of(scope: Scope) -> Decoding | None:
    """Return the decompression of a coded body, whose headers are then those of the plain one.

    Raises UnsupportedCodingError for a coding that is not read.
    """
    headers = scope["headers"]
    codings = [value.decode("latin-1") for name, value in headers if name == b"content-encoding"]
    coding = coding_of(codings) if codings else None
    if coding is None:
        return None
    coded = (b"content-encoding", b"content-length")
    scope["headers"] = [each for each in headers if each[0] not in coded]
    scope.setdefault("state", {})["coding"] = coding
    return Decoding(coding)
