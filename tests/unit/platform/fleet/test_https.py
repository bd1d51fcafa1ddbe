"""A worker behind TLS needs a valid certificate, and its token is never sent before that."""

import ssl

import aiohttp
import pytest
from certificates import self_signed
from pool_world import PoolWorld, probe_often
from scripted_server import ScriptedServer

from fairserve.engine.wire.client import worker_session


@pytest.fixture
def certificate(tmp_path):
    """Return a new self-signed certificate for the loopback of this machine, with its key."""
    return self_signed(tmp_path, "localhost", "IP:127.0.0.1")


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_worker_behind_tls_joins_if_its_certificate_is_valid(
    certificate, monkeypatch, trusted
):
    probe_often(monkeypatch)
    monkeypatch.setenv("TEST_WORKER_TOKEN", "sk-secret")
    key, path = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    session = worker_session()
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))  # as operators name their own authority
        await session.close()
        trusting = ssl.create_default_context(cafile=str(path))
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting))
    async with ScriptedServer("openai", token="sk-secret", ssl=context) as server, session:
        world = PoolWorld(session)
        world.add(server, api_key_env="TEST_WORKER_TOKEN")
        if trusted:
            await world.until(lambda: world.state() == "ready")
            assert await world.call()
        else:
            await world.until(lambda: world.view()["reason"])
            assert "certificate" in world.view()["reason"].lower()
            assert (world.events, server.paths) == ([], [])
        await world.pool.close()
