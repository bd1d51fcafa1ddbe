"""Fixtures for a server in front of one scripted worker."""

import pytest


@pytest.fixture(scope="module")
def server(start_server, worker):
    return start_server("--worker-urls", worker.url, "--keepalive-s", "0.05")
