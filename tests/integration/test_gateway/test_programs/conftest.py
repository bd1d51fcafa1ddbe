"""Fixtures for a server in front of one scripted worker."""

import pytest
from scripted_worker import ScriptedWorker


@pytest.fixture(scope="module")
def worker():
    worker = ScriptedWorker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def server(start_server, worker):
    return start_server("--worker-urls", worker.url, "--keepalive-s", "0.05")
