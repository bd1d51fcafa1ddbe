"""The real Envoy as a child: its start, its death, its parent's death, and its drain."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from envoy_plane import answering, envoy_plane, need_envoy, streaming
from processes import alive, children, eventually
from until import until

from fairserve.platform.envoy.binary import EnvoyError
from fairserve.platform.envoy.process import EnvoyProcess

SUPPORT = Path(__file__).parents[1] / "support"
EVENT = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
END = b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'


async def status(plane):
    try:
        async with aiohttp.ClientSession() as session, session.get(plane.url + "/") as response:
            return response.status
    except aiohttp.ClientError:
        return None


def envoy_of(plane):
    """Return the id of Envoy, which is the child of its guard."""
    (found,) = children(plane.process.pid)
    return found


@pytest.mark.parametrize(("killed", "code"), [("envoy", 128 + signal.SIGKILL), ("guard", -9)])
async def test_a_killed_envoy_is_restarted_on_its_port(killed, code, caplog):
    async with envoy_plane() as plane:
        pid, port = plane.process.pid, plane.process.port
        first = envoy_of(plane)
        assert await status(plane) == 200
        os.kill(first if killed == "envoy" else pid, signal.SIGKILL)
        await until(lambda: plane.process.pid != pid)
        await until(lambda: not alive(first))
        async with asyncio.timeout(60):
            while await status(plane) != 200:
                pass
        assert (plane.process.port, plane.process.starts) == (port, 2)
        assert f"Envoy ended ({code}) and is restarted" in caplog.text


async def test_a_restart_that_fails_is_repeated(caplog, monkeypatch):
    """As where no process or descriptor is free."""
    async with envoy_plane() as plane:
        pid = plane.process.pid
        with monkeypatch.context() as missing:
            missing.setattr(sys, "executable", "/nonexistent")
            os.kill(pid, signal.SIGKILL)
            await until(lambda: "Envoy does not start" in caplog.text)
        await until(lambda: plane.process.pid != pid)
        async with asyncio.timeout(60):
            while await status(plane) != 200:
                pass


async def test_calls_of_a_killed_envoy_end_at_the_server_and_the_worker():
    async with envoy_plane() as plane:
        worker = await plane.worker(streaming([EVENT], end=False), stream=True)
        async with (
            aiohttp.ClientSession() as session,
            session.post(plane.url + "/v1/completions", data=b"{}") as response,
        ):
            await response.content.readuntil(b"\n\n")
            os.kill(envoy_of(plane), signal.SIGKILL)
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        await until(plane.decisions.calls[0].ended.is_set)
        await until(worker.lost.is_set)


def test_a_killed_parent_leaves_no_envoy():
    need_envoy()
    program = (
        "import asyncio, sys; from envoy_plane import envoy_plane\n"
        "async def main():\n"
        "    async with envoy_plane() as plane:\n"
        "        print(plane.process.pid, flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    path = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    ) as parent:
        (pid,) = children(int(parent.stdout.readline()))
        assert alive(pid)
        parent.kill()
    eventually(lambda: not alive(pid), "Envoy outlives its parent")


async def test_stopping_ends_the_process():
    async with envoy_plane() as plane:
        pid = envoy_of(plane)
        await plane.process.stop()
        assert not alive(pid)
        assert plane.process.pid is None
        await plane.process.stop()


async def test_an_envoy_that_hangs_is_killed(caplog):
    async with envoy_plane() as plane:
        pid = envoy_of(plane)
        os.kill(pid, signal.SIGSTOP)
        await plane.process.stop(grace_s=0.1)
        await until(lambda: not alive(pid))
        assert "killed Envoy" in caplog.text


async def test_a_drain_finishes_streams_and_rejects_connections():
    async with envoy_plane() as plane:
        released = asyncio.Event()

        async def script(received, writer):
            await streaming([EVENT], end=False)(received, writer)
            await released.wait()
            writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(END), END))

        await plane.worker(script, stream=True)
        async with (
            aiohttp.ClientSession() as session,
            session.post(plane.url + "/v1/completions", data=b"{}") as response,
        ):
            await response.content.readuntil(b"\n\n")
            drain = asyncio.create_task(plane.process.drain(60))
            async with asyncio.timeout(60):
                while await status(plane) is not None:
                    pass
            assert not drain.done()
            released.set()
            assert b"[DONE]" in await response.read()
        await drain


async def test_a_drain_has_a_time_limit(caplog):
    async with envoy_plane() as plane:
        await plane.worker(streaming([EVENT], end=False), stream=True)
        async with (
            aiohttp.ClientSession() as session,
            session.post(plane.url + "/v1/completions", data=b"{}") as response,
        ):
            await response.content.readuntil(b"\n\n")
            await plane.process.drain(0.1)
        assert "has open requests" in caplog.text


async def test_a_wrong_configuration_is_an_error_with_its_reason(tmp_path):
    need_envoy()
    wrong = {"admin": {"address": {"pipe": {"path": str(tmp_path / "a")}}}, "listener": []}
    process = EnvoyProcess(wrong, tmp_path)
    with pytest.raises(EnvoyError, match=r"(?s)rejects its configuration.*listener"):
        await process.start()
    assert process.pid is None


async def test_a_taken_port_is_an_error(caplog):
    caplog.set_level(logging.WARNING)
    async with envoy_plane() as first:

        def same(configuration):
            address = configuration["static_resources"]["listeners"][0]["address"]
            address["socket_address"]["port_value"] = first.process.port

        with pytest.raises(EnvoyError):
            async with envoy_plane(change=same):
                pass
    assert "Address already in use" in caplog.text


async def test_files_are_private():
    async with envoy_plane() as plane:
        await plane.worker(answering())
        for name in ("envoy.json", "workers.json"):
            assert (plane.folder / name).stat().st_mode & 0o077 == 0
        assert (plane.folder / "admin.sock").stat().st_mode & 0o077 == 0
