"""Fixtures for the tests of the gateway: whole servers in front of real and scripted workers."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from gateway_server import ChildServer, ThreadServer
from scripted_worker import ScriptedWorker
from torch_worker import torch_server


@contextmanager
def servers(tmp_path_factory):
    """Return a context manager that yields a server factory, and closes its servers at the end."""
    started = []

    def start(kind, *flags):
        folder = tmp_path_factory.mktemp("server") / "data"
        server = kind(folder, *flags)
        started.append(server)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.close()


@pytest.fixture(scope="module")
def start_any(tmp_path_factory):
    """Return a factory of servers of a kind, which end with the module."""
    with servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_server(start_any):
    """Return a factory of servers in threads, in front of workers that they do not start."""
    return lambda *flags: start_any(ThreadServer, *flags)


@pytest.fixture(scope="module")
def start_fleet(start_server, tmp_path_factory):
    """Return a factory of servers in threads, whose workers are those of a fleet file."""

    def start(workers, *flags, **more):
        path = tmp_path_factory.mktemp("fleet") / "fleet.json"
        path.write_text(json.dumps({"workers": workers, **more}))
        return start_server("--fleet-file", str(path), *flags)

    return start


@pytest.fixture(scope="module")
def plain(start_fleet):
    """Yield a server whose only ``worker`` speaks plain OpenAI, so that it has a local queue."""
    worker = ScriptedWorker()
    server = start_fleet([{"id": "w", "url": worker.url, "kind": "openai", "model": "scripted"}])
    server.worker = worker
    yield server
    worker.close()


@pytest.fixture(scope="module")
def start_process(start_any):
    """Return a factory of child processes, which may be killed and have embedded workers."""
    return lambda *flags: start_any(ChildServer, *flags)


@pytest.fixture(scope="package")
def server(tmp_path_factory):
    """Return a server in front of the worker with a torch engine, which all modules share."""
    with torch_server(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def scripted():
    """Yield two workers."""
    workers = [ScriptedWorker(), ScriptedWorker()]
    yield workers
    for worker in workers:
        worker.close()
