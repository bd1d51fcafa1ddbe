"""The images: pinned bases, no root, no torch in the server, and all that the package needs."""

import fnmatch
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "deploy/Dockerfile").read_text()
STAGES = {
    name: (base, body)
    for base, name, body in re.findall(
        r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, re.M | re.S
    )
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_bases_are_pinned():
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT.partition("\nFROM ")[0], re.M))
    for image in arguments.values():
        assert re.search(r":v?\d+\.\d+\.\d+", image), image
    for base, _ in STAGES.values():
        assert base in STAGES or base.strip("${}") in arguments


def test_the_last_stage_is_the_server_without_root_and_torch():
    assert list(STAGES)[-1] == "server"
    base, body = STAGES["server"]
    assert base == "base"
    assert "USER 10001:10001" in STAGES["base"][1]
    assert "USER" not in body
    assert "--from=build " in body
    assert "torch" not in STAGES["build"][1]
    assert "torch" in STAGES["build-worker"][1]
    assert "--from=build-worker " in STAGES["worker"][1]


def test_extras_exist_and_the_server_has_all_of_its_own():
    extras = re.search(r"^ARG EXTRAS=(\S+)", TEXT, re.M)[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    not_of_servers = {"torch", "gpu", "json", "vllm", "demo", "agents", "bench", "dev"}
    assert set(PROJECT["optional-dependencies"]) - set(extras) == not_of_servers


def test_the_context_has_every_folder_of_the_package():
    rules = (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]

    def kept(name):
        kept = True
        for rule in rules:
            if fnmatch.fnmatchcase(name, rule.lstrip("!")):
                kept = rule.startswith("!")
        return kept

    linked = {
        link.resolve().relative_to(ROOT).parts[0] for link in (ROOT / "src/fairserve").iterdir()
    }
    assert {"platform", "engine"} <= linked
    for name in {*linked, PROJECT["readme"], "pyproject.toml", "constraints.txt"}:
        assert kept(name), name
    for name in (".git", ".venv", "tests", "docs", "deploy", "secret.key"):
        assert not kept(name), name


@contextmanager
def answering(status):
    """Yield the port of a server whose readiness has a status."""

    class Readiness(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health/readiness" else 404)
            self.end_headers()

        def log_message(self, *args):
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Readiness) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_reads_the_readiness(status, healthy):
    command = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", STAGES["server"][1], re.M)[1]
    _, *arguments = json.loads(command)
    with answering(status) as port:
        settings = {"FAIRSERVE_PORT": str(port)}
        result = subprocess.run([sys.executable, *arguments], env={**os.environ, **settings})
    assert (result.returncode == 0) is healthy
