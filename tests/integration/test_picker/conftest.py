"""Fixtures: pickers in threads of the test, in front of scripted workers."""

from __future__ import annotations

import pytest
from scripted_gateway import PickerServer
from scripted_worker import ScriptedWorker


@pytest.fixture(scope="module")
def workers():
    """Yield two workers that serve one model."""
    found = [ScriptedWorker(kv_blocks=4096), ScriptedWorker(kv_blocks=4096)]
    yield found
    for worker in found:
        worker.close()


@pytest.fixture(scope="module")
def start_picker(tmp_path_factory):
    """Return a factory of pickers, which end with the module."""
    started = []

    def start(*workers, flags=()):
        server = PickerServer(tmp_path_factory.mktemp("picker") / "data", *workers, flags=flags)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="module")
def picker(start_picker, workers):
    """Yield a picker with a default app, in front of both workers."""
    server = start_picker(*workers, flags=("--picker-background-objectives", "batch,sheddable"))
    server.default_app = server.with_default_app()
    return server


@pytest.fixture
def gateway(picker):
    with picker.gateway() as found:
        yield found
