"""A crash of another gateway is repeated and counted; any other failure ends the measurement."""

import os
import signal
import sys
import urllib.request

import pytest

from fairserve.benchmarks.bench.gateway.gateways import LiteLlm
from fairserve.benchmarks.bench.gateway.measurement import (
    MAX_CRASHES,
    MeasuredGateway,
    MeasurementError,
    _repeated,
)

SERVER = f"""#!{sys.executable}
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def gateway(tmp_path):
    """Yield a server that takes the place of LiteLLM's proxy."""
    command = tmp_path / "bin" / "litellm"
    command.parent.mkdir()
    command.write_text(SERVER)
    command.chmod(0o755)
    found = LiteLlm(tmp_path, tmp_path, "http://worker.test", cores=())
    yield found
    found.stop()


def crash(gateway):
    (process,) = gateway.tree.members()
    os.kill(process.pid, signal.SIGKILL)
    gateway._process.process.wait()
    raise MeasurementError("calls failed")


def test_what_a_crash_spoiled_is_measured_again(gateway):
    measured, times = MeasuredGateway(), []

    def measure():
        times.append(gateway.tree)
        if len(times) == 1:
            crash(gateway)
        with urllib.request.urlopen(gateway.url) as answer:
            return answer.status

    assert _repeated(measure, gateway, measured) == 200
    assert len(times) == 2
    assert measured.crashes == {"litellm": 1}


def test_failed_calls_of_a_running_gateway_end_the_measurement(gateway):
    measured = MeasuredGateway()

    def measure():
        raise MeasurementError("calls failed")

    with pytest.raises(MeasurementError):
        _repeated(measure, gateway, measured)
    assert measured.crashes == {}


def test_a_gateway_may_not_crash_for_ever(gateway):
    measured = MeasuredGateway()
    with pytest.raises(MeasurementError):
        _repeated(lambda: crash(gateway), gateway, measured)
    assert measured.crashes == {"litellm": MAX_CRASHES}
