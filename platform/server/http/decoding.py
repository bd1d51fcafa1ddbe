"""Decompress the body of a request as it arrives, in pieces, within the memory of one window.

Each coding has a decoder that returns its output in pieces of bounded size, so that the limit of a body
is checked before its next piece exists: a small body that grows without end costs one piece. A zstd
frame with a window over 8 MiB is rejected, as RFC 9659 asks.

Cost: 1 to 3 ms of the event loop for each decompressed megabyte, with a pass of the loop between pieces.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from fairserve.engine.wire.request_fields import shown
from fairserve.platform.base.errors import InvalidRequestError, UnsupportedCodingError

PIECE_BYTES = 64 * 1024
"""Decompressed bytes that exist at a time."""
MAX_MEMBERS = 10_000
"""Members or frames of one body: each costs its own decompressor, even if it is empty."""
ZSTD_WINDOW_LOG = 23
_ERRORS = (zlib.error, zstd.ZstdError, brotli.error)


Outputs = Callable[[Any, bytes], Iterator[bytes]]
"""Yields the output of a decompressor for the next data, in pieces that may be empty."""


class _Decoder(Protocol):
    """Decompresses one stream of one coding."""

    @property
    def ended(self) -> bool:
        """True at the end of a member; more data begins the next one."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the output of the next data, in pieces. Raises one of ``_ERRORS``."""
        ...


class _Members:
    """A body of members, each of which has its own decompressor: gzip and zstd."""

    def __init__(self, new: Callable[[], Any], outputs: Outputs) -> None:
        self._new, self._outputs = new, outputs
        self._members = 0
        self.ended = True

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the output of all members."""
        while data:
            if self.ended:
                self._begin()
            for piece in self._outputs(self._decompressor, data):
                if piece:
                    yield piece
            self.ended = self._decompressor.eof
            data = self._decompressor.unused_data if self.ended else b""

    def _begin(self) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise InvalidRequestError(
                f"the body has over {MAX_MEMBERS} compressed members; send it as one",
                code="malformed_body",
            )
        self._decompressor = self._new()
        self.ended = False


def _zlib_outputs(one: Any, data: bytes) -> Iterator[bytes]:
    """Yield the output of a decompressor of gzip, or of zlib's format."""
    while True:
        piece = one.decompress(data, PIECE_BYTES)
        data = one.unconsumed_tail
        yield piece
        if one.eof or not (piece or data):
            return


def _zstd_outputs(one: Any, data: bytes) -> Iterator[bytes]:
    """Yield the output of a decompressor of zstd."""
    while True:
        yield one.decompress(data, PIECE_BYTES)
        data = b""
        if one.eof or one.needs_input:
            return


def _zlib(wbits: int) -> _Members:
    return _Members(lambda: zlib.decompressobj(wbits), _zlib_outputs)


class _Deflate:
    """deflate: by RFC 9110 the format of zlib, but some clients send the data without its header."""

    def __init__(self) -> None:
        self._head = b""
        self._zlib: _Members | None = None

    @property
    def ended(self) -> bool:
        """True at the end of the stream."""
        return not self._head if self._zlib is None else self._zlib.ended

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the output; the first two bytes decide the format."""
        if self._zlib is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            has_header = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._zlib = _zlib(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
        yield from self._zlib.pieces(data)


class _Brotli:
    """br, which has one member."""

    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()
        self._begun = False

    @property
    def ended(self) -> bool:
        """True at the end of the stream."""
        return not self._begun or self._decompressor.is_finished()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the output."""
        one = self._decompressor
        self._begun = self._begun or bool(data)
        while data or not one.is_finished():
            piece = one.process(data, output_buffer_limit=PIECE_BYTES)
            data = b""
            if piece:
                yield piece
            elif one.can_accept_more_data():
                return


@dataclass(frozen=True, slots=True)
class _Coding:
    decoder: Callable[[], _Decoder]
    memory_bytes: int
    """Most bytes of a decompressor: its window."""


CODINGS: Mapping[str, _Coding] = {
    "gzip": _Coding(lambda: _zlib(16 + zlib.MAX_WBITS), 1 << 16),
    "deflate": _Coding(_Deflate, 1 << 16),
    "br": _Coding(_Brotli, 1 << 24),
    "zstd": _Coding(lambda: _Members(_new_zstd, _zstd_outputs), 1 << ZSTD_WINDOW_LOG),
}
"""Codings that are read, by name."""
ACCEPTED = ", ".join(CODINGS)


def _new_zstd() -> Any:
    limit = {int(zstd.DecompressionParameter.window_log_max): ZSTD_WINDOW_LOG}
    return zstd.ZstdDecompressor(options=limit)


class Decoding:
    """The decompression of one body."""

    def __init__(self, name: str) -> None:
        coding = CODINGS[name]
        self.memory_bytes = coding.memory_bytes
        self._name = name
        self._decoder = coding.decoder()

    def pieces(self, data: bytes, *, last: bool) -> Iterator[bytes]:
        """Yield the output of a part of the body, in pieces of about ``PIECE_BYTES`` that are not empty.

        Raises InvalidRequestError if the body is not of its coding, or ends too early.
        """
        try:
            yield from self._decoder.pieces(data)
        except _ERRORS as error:
            raise self._malformed(f"cannot be decompressed: {error}") from error
        if last and not self._decoder.ended:
            raise self._malformed("ends before its data does")

    def _malformed(self, problem: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"the body with Content-Encoding {self._name} {problem}", code="malformed_body"
        )


def coding_of(values: list[str]) -> str | None:
    """Return the coding that the lines of ``Content-Encoding`` name; None for a plain body.

    Raises UnsupportedCodingError for any other coding, and for several at a time.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    codings = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnsupportedCodingError(
            f"Content-Encoding is {shown(', '.join(codings))}; allowed: one of {ACCEPTED}, or none",
            headers={"Accept-Encoding": ACCEPTED},
        )
    return codings[0]
