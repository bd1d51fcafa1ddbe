"""The worker's server in this process: what happens to a call while its prompt is being read."""

import httpx
import pytest

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME
from fairserve.engine.torch.engine_options import EngineOptions
from fairserve.engine.torch.server import WorkerServer
from fairserve.scheduling.local.fcfs import Fcfs


@pytest.fixture
async def server(builtin):
    server = WorkerServer(builtin, Fcfs(), EngineOptions(kv_tokens=1024), max_queue=8)
    server.engine.start()
    yield server
    server.engine.stop()
    await server.close()


async def test_a_call_whose_prompt_is_read_as_a_drain_begins_is_returned(server, monkeypatch):
    encode = server._encoder.encode

    async def drained(wanted):
        await server.drain(0)
        return await encode(wanted)

    monkeypatch.setattr(server._encoder, "encode", drained)
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        body = {"model": BUILTIN_MODEL_NAME, "prompt": "Hello"}
        answer = await client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert server.engine.stats().prompt_tokens == 0
