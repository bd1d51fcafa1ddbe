"""Fixtures for the tests of the gateway: whole servers in front of real and scripted workers.

They are the conformance suite of the data planes: a test whose server comes from these fixtures runs
with each, the embedded one in ``make test`` and Envoy in ``make conformance``. Exceptions are marked.
``embedded_only`` names the row of the table in ``docs/guide/data-plane.md`` because of which a test
cannot pass at Envoy. ``one_plane`` explains why a test needs one: what it tests passes through none.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager

import pytest
from gateway_server import ChildServer, ThreadServer
from installed_envoy import need_envoy
from scripted_worker import ScriptedWorker
from torch_worker import shared_worker

PLANES = {
    "embedded": (),
    # Progress is reported each second by default, which tests would wait for.
    "envoy": ("--data-plane", "envoy", "--envoy-progress-s", "0.1"),
}
"""Flags of ``serve`` for each data plane."""


def pytest_generate_tests(metafunc):
    """Run a test once for each data plane, if it starts a server."""
    if "plane" in metafunc.fixturenames:
        metafunc.parametrize("plane", PLANES, scope="module")


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that are not for their plane."""
    wanted = config.getoption("--data-plane")
    kept, left_out = [], []
    for item in items:
        plane = getattr(item, "callspec", None) and item.callspec.params.get("plane")
        if wanted == "embedded":
            keeps = plane != "envoy"
        else:
            keeps = plane == "envoy" and not _needs_embedded(item)
        (kept if keeps else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _needs_embedded(item):
    return any(item.get_closest_marker(name) for name in ("embedded_only", "one_plane"))


@contextmanager
def servers(tmp_path_factory):
    """Return a context manager that yields a server factory, and closes its servers at the end."""
    started = []

    def start(kind, plane, *flags):
        if plane == "envoy":
            need_envoy()
        folder = tmp_path_factory.mktemp("server") / "data"
        server = kind(folder, *PLANES[plane], *flags)
        started.append(server)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.close()


@pytest.fixture(scope="module")
def start_any(tmp_path_factory, plane):
    """Return a factory of servers of a kind, which end with the module or its half for a plane."""
    with servers(tmp_path_factory) as start:
        yield lambda kind, *flags: start(kind, plane, *flags)


@pytest.fixture(scope="module")
def start_server(start_any):
    """Return a factory of servers in threads, in front of workers that they do not start."""
    return lambda *flags: start_any(ThreadServer, *flags)


@pytest.fixture(scope="module")
def start_process(start_any):
    """Return a factory of child processes, which may be killed and have embedded workers."""
    return lambda *flags: start_any(ChildServer, *flags)


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory):
    """Yield a function that returns the server of a plane which all modules share."""
    with servers(tmp_path_factory) as start:
        flags = ("--worker-urls", shared_worker().url, "--usage-rollup-interval-s", "0.2")
        yield functools.cache(lambda plane: start(ThreadServer, plane, *flags))


@pytest.fixture(scope="module")
def server(shared_server, plane):
    """Return a server in front of the worker with a torch engine that this process shares."""
    return shared_server(plane)


@pytest.fixture(scope="module")
def scripted(plane):
    """Yield two workers, which each plane has for itself."""
    workers = [ScriptedWorker(), ScriptedWorker()]
    yield workers
    for worker in workers:
        worker.close()
