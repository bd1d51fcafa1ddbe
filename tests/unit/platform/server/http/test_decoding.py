"""Compressed bodies are decompressed in bounded pieces, however they arrive and whatever they hold."""

import gzip
import random
import zlib

import brotli
import pytest

from fairserve.platform.base.errors import InvalidRequestError, UnsupportedCodingError
from fairserve.platform.server.http.decoding import (
    CODINGS,
    MAX_MEMBERS,
    PIECE_BYTES,
    Decoding,
    coding_of,
    zstd,
)

TEXT = random.Random(1).randbytes(70_000).hex().encode()
LARGEST_PIECE_BYTES = 2 * PIECE_BYTES
"""brotli rounds its limit up to blocks."""


def raw_deflate(data):
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


def streamed_zstd(data):
    """Return a frame without its size, as clients that stream send it."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(data) + compressor.flush()


ENCODERS = {
    "gzip": ("gzip", gzip.compress),
    "gzip of two members": ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstd.compress),
    "zstd without a size": ("zstd", streamed_zstd),
    "zstd of two frames": ("zstd", lambda data: zstd.compress(data[:9]) + zstd.compress(data[9:])),
}


def decoded(coding, data, part_bytes=1 << 20):
    """Return the pieces of a body that arrives in parts of a size."""
    decoding, pieces = Decoding(coding), []
    starts = range(0, len(data), part_bytes) or [0]
    for start in starts:
        last = start + part_bytes >= len(data)
        pieces += decoding.pieces(data[start : start + part_bytes], last=last)
    return pieces


@pytest.mark.parametrize("part_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_each_coding_is_read(encoder, part_bytes):
    coding, encode = ENCODERS[encoder]
    text = TEXT if part_bytes > 1 else TEXT[:500]
    pieces = decoded(coding, encode(text), part_bytes)
    assert b"".join(pieces) == text
    assert all(0 < len(piece) <= LARGEST_PIECE_BYTES for piece in pieces)
    assert decoded(coding, encode(b""), part_bytes) == []


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_body_that_grows_without_end_costs_one_piece_at_a_time(encoder):
    """The limit is checked between pieces: what lies beyond it is never decompressed."""
    coding, encode = ENCODERS[encoder]
    bomb = encode(b"\0" * 3_000_000)
    assert len(bomb) < 10_000
    pieces = Decoding(coding).pieces(bomb, last=True)
    sizes = [len(next(pieces)) for _ in range(10)]
    assert max(sizes) <= LARGEST_PIECE_BYTES
    assert sum(sizes) > 5 * PIECE_BYTES


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_body_that_is_cut_or_damaged_is_rejected(encoder):
    coding, encode = ENCODERS[encoder]
    data = encode(TEXT)
    for wrong in (
        data[:-1],
        data[: len(data) // 2],
        data[:1],
        b"not compressed at all",
        data + b"x",
    ):
        with pytest.raises(InvalidRequestError) as rejected:
            decoded(coding, wrong)
        assert rejected.value.code == "malformed_body"
        assert f"Content-Encoding {coding}" in rejected.value.message


def test_a_window_over_8_mib_is_rejected():
    """The decompressor of a frame would take as much memory as the frame names."""
    options = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(TEXT) + compressor.flush()
    with pytest.raises(InvalidRequestError, match="too much memory"):
        decoded("zstd", data)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_members_without_content_are_bounded(coding):
    empty = ENCODERS[coding][1](b"")
    assert decoded(coding, empty * MAX_MEMBERS) == []
    with pytest.raises(InvalidRequestError, match="compressed members"):
        decoded(coding, empty * (MAX_MEMBERS + 1))


@pytest.mark.parametrize(
    ("lines", "coding"),
    [
        ([], None),
        (["", "identity"], None),
        (["GZip"], "gzip"),
        (["x-gzip"], "gzip"),
        (["identity, br"], "br"),
        *(([name], name) for name in CODINGS),
    ],
)
def test_the_coding_of_a_body(lines, coding):
    assert coding_of(lines) == coding


@pytest.mark.parametrize(
    "lines", [["compress"], ["gzip, br"], ["gzip", "gzip"], ["lz4"], ["gzip;q=1"]]
)
def test_other_codings_are_rejected_with_those_that_are_read(lines):
    with pytest.raises(UnsupportedCodingError, match="Content-Encoding is") as rejected:
        coding_of(lines)
    assert rejected.value.status == 415
    assert rejected.value.headers == {"Accept-Encoding": "gzip, deflate, br, zstd"}
