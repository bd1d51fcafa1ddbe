"""A client of HTTP/2 over TLS, with frames written by hand: httpx needs another package for it."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing, contextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
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
    known = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "a")]
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in (*known, *lines))
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)


def _text(value):
    """Return a text as HPACK has it, without Huffman's code; at most 126 bytes."""
    data = value.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data


class Http2Client:
    """A connection that has sent its preface."""

    def __init__(self, connection):
        self._connection = connection
        self._read = connection.makefile("rb")
        self.send(PREFACE, frame(SETTINGS))

    def send(self, *frames):
        self._connection.sendall(b"".join(frames))

    def frame(self):
        """Return kind, flags and payload of the next frame; settings and pings are acknowledged."""
        head = self._read.read(9)
        payload = self._read.read(int.from_bytes(head[:3]))
        kind, flags = head[3], head[4]
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK))
        if kind == PING and not flags & ACK:
            self.send(frame(PING, ACK, 0, payload))
        return kind, flags, payload

    def answer(self):
        """Return whether the only stream is answered with status 200, and the body."""
        ok, body, ended = False, b"", False
        while not ended:
            kind, flags, payload = self.frame()
            assert kind not in (RESET, GOAWAY), payload
            if kind == HEADERS and payload:
                ok = ok or payload[0] == STATUS_200
            if kind == DATA:
                body += payload
            ended = kind in (HEADERS, DATA) and bool(flags & END_STREAM)
        return ok, body


@contextmanager
def http2_client(port, authority):
    """Connect to a port of the loopback, whose certificate is in the PEM file ``authority``."""
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        closing(context.wrap_socket(plain, server_hostname="localhost")) as connection,
    ):
        assert connection.selected_alpn_protocol() == "h2"
        yield Http2Client(connection)
