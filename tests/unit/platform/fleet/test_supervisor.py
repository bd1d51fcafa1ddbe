"""The supervisor starts, replaces and stops its children, which are small scripts here."""

import asyncio
import os
import signal
import sys

import pytest

from fairserve.platform.fleet.supervisor import (
    Supervisor,
    WorkersFailedError,
    socket_folder,
    worker_command,
)

READY = """
import json, os, signal, sys
print("not json", flush=True)
print(json.dumps({"event": "ready", "port": os.getpid()}), flush=True)
"""
SERVES = READY + "signal.pause()"
STUBBORN = READY.replace("print(json", "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(json")
DIES_ONCE = """
import os, sys
if not os.path.exists(sys.argv[1]):
    open(sys.argv[1], "w").close(); sys.exit(3)
"""


class World:
    def __init__(self):
        self.ready = {}
        self.lost = []
        self.changed = asyncio.Event()

    def on_ready(self, worker_id, url):
        self.ready[worker_id] = int(url.rpartition(":")[2])
        self.changed.set()

    def on_lost(self, worker_id):
        self.lost.append(worker_id)
        self.changed.set()

    async def until(self, condition):
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def supervise():
    started = []

    def start(script, *arguments, count=1):
        world = World()
        command = [sys.executable, "-I", "-S", "-c", script, *arguments]
        supervisor = Supervisor(command, count, world.on_ready, world.on_lost, first_pause_s=0.01)
        supervisor.start()
        started.append(supervisor)
        return world, supervisor

    yield start
    for supervisor in started:
        await supervisor.stop(grace_s=0.1)


async def test_workers_are_announced_with_their_port(supervise):
    world, supervisor = supervise(SERVES, count=2)
    await world.until(lambda: len(world.ready) == 2)
    pids = {process.worker_id: process.pid for process in supervisor.processes()}
    assert world.ready == pids, "the script reports its pid as its port"


async def test_a_worker_that_dies_is_replaced(supervise):
    world, supervisor = supervise(SERVES)
    await world.until(lambda: world.ready)
    first = world.ready["w0"]
    os.kill(first, signal.SIGKILL)
    await world.until(lambda: world.ready["w0"] != first)
    assert world.lost == ["w0"]
    assert supervisor.processes()[0].starts == 2


async def test_a_worker_that_fails_to_start_is_retried(supervise, tmp_path):
    world, _ = supervise(DIES_ONCE + SERVES, str(tmp_path / "mark"))
    await world.until(lambda: world.ready)
    assert world.lost == [], "it was never announced before"


async def test_workers_that_never_start_are_reported(supervise):
    _, supervisor = supervise("raise SystemExit(1)")
    with pytest.raises(WorkersFailedError, match="3 times"):
        await asyncio.wait_for(supervisor.failed, 30)


async def test_a_worker_that_exits_with_a_reason_is_not_restarted(supervise):
    event = '{"event": "failed", "reason": "there is no such model"}'
    _, supervisor = supervise(f"print({event!r}, flush=True); raise SystemExit(1)")
    with pytest.raises(WorkersFailedError, match="worker w0 cannot start: there is no such model"):
        await asyncio.wait_for(supervisor.failed, 30)
    assert supervisor.processes()[0].starts == 1


@pytest.mark.parametrize("script", [SERVES, STUBBORN + "signal.pause()"])
async def test_stopping_leaves_no_child(supervise, script):
    world, supervisor = supervise(script)
    await world.until(lambda: world.ready)
    pid = world.ready["w0"]
    await supervisor.stop(grace_s=0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_worker_with_a_long_line_is_supervised(supervise):
    world, _ = supervise(READY.replace('"not json"', '"y" * 1_000_000'))
    await world.until(lambda: world.ready)
    await world.until(lambda: world.lost)


async def test_a_worker_with_much_output_is_not_blocked(supervise):
    """The output is larger than a pipe's buffer, after the worker was ready."""
    talks = READY + "sys.stdout.write('x\\n' * 200_000); sys.stdout.flush(); sys.exit(0)"
    world, _ = supervise(talks)
    await world.until(lambda: world.lost)


def test_the_command_line_has_the_kv_event_endpoints(tmp_path):
    command = worker_command("dir", 512, 4, "dlpm", socket_folder=tmp_path)
    flags = ["--kv-events-endpoint", "--kv-events-replay-endpoint"]
    assert [command[command.index(flag) + 1] for flag in flags] == [f"ipc://{tmp_path}/*"] * 2


def test_the_command_line_has_the_configured_options():
    command = worker_command("dir", 512, 4, "dlpm", ["quantum=5"])
    assert command[-12:] == [
        "--model", "dir", "--kv-tokens", "512", "--max-batch", "4",
        "--local-scheduler", "dlpm", "--parent-pid", str(os.getpid()),
        "--scheduler-option", "quantum=5",
    ]  # fmt: skip


def test_sockets_are_in_the_data_folder(tmp_path):
    folder = socket_folder(tmp_path / "data")
    assert folder == tmp_path / "data" / "sockets"
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "1-events").touch()
    assert list(socket_folder(tmp_path / "data").iterdir()) == []


def test_sockets_are_in_a_temporary_folder_if_paths_are_too_long(tmp_path):
    data = tmp_path / ("d" * 100)
    folder = socket_folder(data)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(str(folder)) < 90
    assert list(data.iterdir()) == []
    folder.rmdir()
