"""A server process with few descriptors is crowded by idle connections, and then stopped."""

import json
import select
import signal
import socket
import subprocess
from contextlib import ExitStack

import httpx
import pytest
from constants import defaults
from gateway_server import ChildServer
from processes import eventually
from server_client import DEADLINE_S

from fairserve.platform.server import process

PATH = "/v1/chat/completions"
FILES = 300
"""Limit of open files: 150 for the process itself, so 75 connections, 37 of one address."""
ONE_ADDRESS = 37


class CrowdedServer(ChildServer):
    """A process with few descriptors, whose standard error is read by a log collector."""

    wrapper = ("sh", "-c", f'ulimit -Sn 100 && ulimit -Hn {FILES} && exec "$@"', "sh")

    def errors_to(self, log):
        self.collector = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
        return self.collector.stdin

    def start(self):
        super().start()
        self.collector.stdin.close()  # the server has its own copy

    def close(self):
        super().close()
        self.collector.kill()
        self.collector.wait()


@pytest.fixture(scope="module")
def crowded(start_any, scripted):
    flags = ("--keepalive-s", "0.05", "--log-format", "json")
    with defaults(process, "RequestLimits", head_timeout_s=600.0):
        return start_any(CrowdedServer, "--worker-urls", scripted[0].url, *flags)


def body(text="ok", **more):
    message = {"role": "user", "content": text}
    return {"model": "scripted", "messages": [message], "max_tokens": 20, **more}


def idle_connections(server, stack, addresses):
    """Open idle connections from the given addresses."""
    to = ("127.0.0.1", server.port)
    return [
        stack.enter_context(socket.create_connection(to, DEADLINE_S, source_address=(address, 0)))
        for address in addresses
    ]


def rejected(clients):
    """Return the connections that the server has answered or closed."""
    ready, _, _ = select.select(clients, [], [], 0)
    return ready


def test_its_log_is_one_object_a_line(crowded):
    call_id = crowded.post(PATH, body()).headers["x-request-id"]

    def events():
        """Return the lines of the log without the banner on standard output."""
        lines = crowded.log().splitlines()
        ours = [line for line in lines if not line.startswith(("FairServe is ready", "  "))]
        found = [json.loads(line) for line in ours]
        return found if any(each.get("request_id") == call_id for each in found) else None

    found = eventually(events, "the call is not in the log")
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, found))
    assert {"fairserve.access", "fairserve.platform.fleet.watch"} <= {e["logger"] for e in found}
    assert not any(each["logger"].startswith("uvicorn") for each in found)


def test_idle_connections_of_one_address_leave_room_for_others(crowded):
    with ExitStack() as stack:
        clients = idle_connections(crowded, stack, ["127.0.0.2"] * 200)
        eventually(
            lambda: len(rejected(clients)) == 200 - ONE_ADDRESS, lambda: len(rejected(clients))
        )
        assert crowded.post(PATH, body()).status_code == 200
        with httpx.Client(base_url=crowded.url, timeout=DEADLINE_S) as another:
            assert another.get("/health/readiness").status_code == 200
    assert "Too many open files" not in crowded.log()


def test_idle_connections_of_many_addresses_leave_descriptors_free(crowded):
    assert crowded.post(PATH, body()).status_code == 200  # its connection remains open
    with ExitStack() as stack:
        addresses = [f"127.0.1.{number}" for number in range(1, 201)]
        clients = idle_connections(crowded, stack, addresses)
        eventually(lambda: len(rejected(clients)) >= 200 - 75, "too many are let in")
        assert crowded.post(PATH, body()).status_code == 200
        assert crowded.admin("POST", "/admin/jobs/rollup/run").status_code in (200, 202)
        jobs = eventually(lambda: crowded.admin("GET", "/admin/jobs").json())
        assert jobs
    log = crowded.log()
    assert "Too many open files" not in log, log
    assert "Traceback" not in log, log
    assert f"{FILES} open files are allowed: 75 client connections" in log


def test_it_stops_without_a_log_reader_and_answers_503_meanwhile(crowded, scripted):
    """The port is open to the end, and the exit code is that of a clean stop."""
    headers = {"Authorization": f"Bearer {crowded.app_key}"}
    asked = body("hold to the end", stream=True)
    with crowded.http.stream("POST", PATH, json=asked, headers=headers) as answer:
        lines = answer.iter_lines()
        eventually(lambda: "to the end" in scripted[0].holding)
        crowded.collector.kill()
        crowded.collector.wait()
        crowded.process.send_signal(signal.SIGTERM)

        def rejection():
            with httpx.Client(base_url=crowded.url, timeout=DEADLINE_S) as another:
                came = another.post(PATH, json=body(), headers=headers)
                return came if came.status_code != 200 else None

        late = eventually(rejection, "it takes calls")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
        assert int(late.headers["retry-after"]) > 0
        assert httpx.get(f"{crowded.url}/health/readiness").json()["status"] == "draining"
        scripted[0].release()
        *_, last = (line for line in lines if line.startswith("data: "))
    assert last == "data: [DONE]"
    assert crowded.process.wait(DEADLINE_S) == 0
