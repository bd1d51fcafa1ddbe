"""Calls of clients that stop reading end, and no memory is held for them."""

import contextlib
import json
import socket

import pytest
from constants import defaults
from processes import eventually

from fairserve.platform.server import wiring
from fairserve.platform.serving.completions.answer import ClientLimits

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway(start_server, scripted):
    """Yield a server that drops a slow client soon."""
    urls = ",".join(worker.url for worker in scripted)
    with defaults(wiring, "Completions", client_limits=ClientLimits(write_timeout_s=0.3)):
        return start_server("--worker-urls", urls)


def connect(gateway, run, **headers):
    """Open a connection with an endless answer of which nothing has been read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", gateway.port))
    content = [{"role": "user", "content": f"flood {run}"}]
    body = json.dumps({"model": "scripted", "messages": content, "stream": True}).encode()
    lines = [
        f"POST {PATH} HTTP/1.1",
        f"Host: {gateway.port}",
        f"Authorization: Bearer {gateway.app_key}",
        f"Content-Length: {len(body)}",
        f"X-Interaction-Id: {run}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    return contextlib.closing(connection)


def ended(gateway, scripted, run, before):
    row = gateway.row(interaction_id=run)
    assert row["outcome"] == "cancelled"
    assert row["error"] == "the client did not read its answer for 0.3 s"
    assert row["output_tokens"] > 0, "what was used is recorded"
    eventually(lambda: sum(worker.disconnects for worker in scripted) == before + 1)
    assert gateway.cluster()["running_calls"] == 0


def test_a_client_that_stops_reading_loses_its_call_and_its_connection(gateway, scripted):
    before = sum(worker.disconnects for worker in scripted)
    with connect(gateway, "run-stopped") as connection:
        ended(gateway, scripted, "run-stopped", before)
        own = connection.getsockname()
        connections = gateway._thread.server.server_state.connections
        eventually(lambda: own not in [each.client for each in connections.copy()])


def test_a_client_that_reads_too_slowly_is_dropped(gateway, scripted):
    before = sum(worker.disconnects for worker in scripted)
    with connect(gateway, "run-trickle") as connection:

        def trickle():
            with contextlib.suppress(ConnectionError):
                connection.recv(512)
            return gateway.rows(interaction_id="run-trickle")

        eventually(trickle)
        ended(gateway, scripted, "run-trickle", before)
