"""The command ``fairserve picker`` as a process."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from processes import eventually
from scripted_gateway import Gateway

from fairserve.platform.server import cli

COMMAND = (sys.executable, "-m", "fairserve.platform.server.cli", "picker")


def test_a_process_serves_gateways_until_it_is_interrupted(workers, tmp_path):
    flags = ("--worker-urls", workers[0].url, "--port", "0", "--picker-port", "0")
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*COMMAND, "--data-dir", str(tmp_path / "data"), "--picker-tls", "off", *flags],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        banner = r"gateways 127\.0\.0\.1:(\d+) \(gRPC, plain text\)"
        found = eventually(
            lambda: re.search(banner, log.read_text()), lambda: f"no banner\n{log.read_text()}"
        )
        assert "console http://127.0.0.1:" in eventually(log.read_text)
        with Gateway(int(found.group(1))) as gateway:
            assert gateway.health("readiness") == "SERVING"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ((), "the picker has no workers"),
        (("--pool-name", "p", "--pool-kv-ports", ",5558"), "pool_kv_ports"),
    ],
)
def test_wrong_flags_are_an_error_of_one_line(flags, problem, tmp_path, capsys):
    assert cli.main(["picker", "--data-dir", str(tmp_path / "data"), *flags]) == 2
    assert problem in capsys.readouterr().err


def test_a_port_in_use_is_an_error_of_one_line(workers, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--worker-urls", workers[0].url, "--port", "0", "--picker-port", port)
        assert cli.main(["picker", "--data-dir", str(tmp_path / "data"), *flags]) == 1
    err = capsys.readouterr().err
    assert f"127.0.0.1:{port}: Address already in use" in err
    assert "choose another port with --picker-port" in err
