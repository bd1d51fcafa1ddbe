"""Frames of HTTP/2, written by hand for clients that do not behave."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager

DEADLINE_S = 90
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MAX_CONCURRENT_STREAMS = 3
ENHANCE_YOUR_CALM = 11
STATUS_200 = 0x88
"""First byte of the headers of an answer with this status: an index of HPACK's static table."""


def frame(kind, flags=0, stream=0, payload=b""):
    return b"%b%c%c%b%b" % (
        len(payload).to_bytes(3),
        kind,
        flags,
        stream.to_bytes(4),
        payload,
    )


def request(stream, path, *lines, body=b"{}"):
    """Return the frames of a POST; ``lines`` are pairs of a header's name and its value."""
    known = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")]
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in (*known, *lines))
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)


def _text(value):
    """Return a text as HPACK has it, without Huffman's code; at most 126 bytes."""
    data = value.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data


class Http2Client:
    """A connection without TLS that has sent its preface."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, *frames):
        self.writer.write(b"".join(frames))

    async def read(self):
        """Return kind, flags, stream and payload of the next frame; settings are acknowledged."""
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3]))
        kind, flags = head[3], head[4]
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK))
        if kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        return kind, flags, int.from_bytes(head[5:]), payload

    async def read_until(self, wanted):
        """Return the next frame of this kind."""
        while (found := await self.read())[0] != wanted:
            pass
        return found

    async def read_to_end(self):
        """Return all further frames, up to the end of the connection."""
        found = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    found.append(await self.read())
        return found

    async def accepts(self):
        """Return whether the answer that is expected has status 200; False: an error, or no answer."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, _, _, payload = await self.read()
                if kind in (HEADERS, RESET, GOAWAY):
                    return kind == HEADERS and payload[0] == STATUS_200
        return False


@asynccontextmanager
async def http2_client(port):
    """Connect to a port of the loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = Http2Client(reader, writer)
    client.send(PREFACE, frame(SETTINGS))
    try:
        yield client
    finally:
        writer.close()


def settings_of(payload):
    """Return the values of a frame of settings by their ids."""
    return {
        int.from_bytes(payload[at : at + 2]): int.from_bytes(payload[at + 2 : at + 6])
        for at in range(0, len(payload), 6)
    }
