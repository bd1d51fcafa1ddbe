"""The real Envoy sends a call to the chosen worker, and to the relay in every other case."""

import asyncio
import socket

import aiohttp
import orjson
import pytest
from envoy_plane import (
    RELAYED,
    WHOLE,
    answering,
    envoy_plane,
    facts_of,
    immediate,
    streaming,
)
from until import until

from fairserve.platform.envoy.protocol import messages_pb2 as pb

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
CALLS = 5
"""Calls of a test, for what a balancer might do by turns."""


@pytest.fixture
async def plane():
    async with envoy_plane() as plane:
        yield plane


async def ask(plane, path=PATHS[0], *, method="POST", data=b"{}", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, plane.url + path, data=data, headers=headers) as response,
    ):
        found = {name.lower(): value for name, value in response.headers.items()}
        return response.status, found, await response.read()


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("path", PATHS)
async def test_a_call_reaches_the_chosen_worker_only(plane, path):
    workers = [await plane.worker(answering(body=WHOLE)) for _ in range(3)]
    for worker in workers:
        plane.send_to(worker.address)
        for _ in range(CALLS):
            status, _, _ = await ask(plane, path)
            assert status == 200
    assert [len(worker.received) for worker in workers] == [CALLS] * 3
    assert {each.path for worker in workers for each in worker.received} == {path}
    assert not plane.api.received


async def test_the_decision_replaces_headers_and_body(plane):
    worker = await plane.worker(answering(body=WHOLE))
    plane.decisions.set_headers["authorization"] = "Bearer worker"
    plane.decisions.body = b'{"other": "and longer"}'
    await ask(plane, authorization="Bearer client", x_other="kept")
    received = worker.received[0]
    assert received.body == plane.decisions.body
    assert received.headers["authorization"] == "bearer worker"
    assert received.headers["x-other"] == "kept"
    call = plane.decisions.calls[0]
    assert call.body == b"{}"
    assert call.headers["authorization"] == "Bearer client"
    assert call.headers["x-forwarded-for"] == "127.0.0.1"


async def test_clients_cannot_set_reserved_headers(plane):
    worker = await plane.worker(answering(body=WHOLE))
    other = await plane.worker(answering(body=WHOLE))
    plane.send_to(worker.address)
    await ask(
        plane,
        x_fairserve_call="stolen",
        x_fairserve_relay="1",
        x_gateway_destination_endpoint=other.address,
        X_Gateway_Inference_Objective="9",
        x_envoy_retry_on="5xx",
        x_envoy_max_retries="9",
        accept_encoding="gzip",
    )
    seen = plane.decisions.calls[0].headers
    reserved = ("x-fairserve-", "x-gateway-", "x-envoy-retry", "x-envoy-max")
    assert not [name for name in seen if name.startswith(reserved)]
    assert worker.received[0].headers["x-fairserve-call"] == "r1"
    assert "accept-encoding" not in worker.received[0].headers
    assert not other.received
    assert not plane.api.received
    await ask(plane, "/v1/models", method="GET", x_fairserve_call="stolen", x_fairserve_relay="1")
    assert not [name for name in plane.api.received[0].headers if name.startswith(reserved)]


@pytest.mark.parametrize(
    "line",
    [
        "X-FairServe-Call: stolen",
        "x-fairserve-call: a\r\nx-fairserve-call: stolen",
        "x-a: a\rx-fairserve-call: stolen",
        "x-a: a\r\n x-fairserve-call: stolen",
        "connection: x-fairserve-call\r\nx-fairserve-call: stolen",
        "X-Gateway-Destination-Endpoint: 127.0.0.1:1",
        "connection: x-gateway-destination-endpoint",
        "X-Envoy-Attempt-Count: 2",
    ],
)
@pytest.mark.parametrize("path", [PATHS[0], "/v1/models"])
async def test_reserved_headers_cannot_be_hidden(plane, path, line):
    worker = await plane.worker(answering(body=WHOLE))
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n{line}\r\n\r\n{{}}".encode()
    )
    assert (await reader.readuntil(b"\r\n")).split()[1] == b"200"
    writer.close()
    if path == PATHS[0]:
        assert worker.received[0].headers["x-fairserve-call"] == "r1"
        seen = plane.decisions.calls[0].headers
    else:
        seen = plane.api.received[0].headers
        assert seen.pop("x-envoy-attempt-count") == "1"
    assert {
        "x-fairserve-call",
        "x-gateway-destination-endpoint",
        "x-envoy-attempt-count",
    }.isdisjoint(seen)


@pytest.mark.parametrize(
    "path",
    [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "/v1/chat/completions;a=b",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions%20",
        "/V1/chat/completions",
        "/v1/chat/completions/../models",
        "/v1/chat/completions%3Fa",
    ],
)
async def test_paths_that_are_no_call_go_to_the_server(plane, path):
    worker = await plane.worker(answering(body=WHOLE))
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.process.port)
    writer.write(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{{}}".encode())
    assert (await reader.readuntil(b"\r\n")).split()[1] == b"200"
    writer.close()
    assert len(plane.api.received) == 1
    assert not worker.received
    assert not plane.decisions.calls


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PURGE"])
async def test_other_methods_go_to_the_server(plane, method):
    worker = await plane.worker(answering(body=WHOLE))
    status, _, body = await ask(plane, method=method)
    assert (status, body) == (200, b'{"by":"api"}')
    assert not worker.received
    assert not plane.decisions.calls


@pytest.mark.parametrize("address", ["10.255.0.1:1", "nonsense", ""])
async def test_a_call_without_its_worker_falls_to_the_relay(plane, address):
    worker = await plane.worker(answering(body=WHOLE))
    plane.send_to(address)
    for _ in range(CALLS):
        status, _, body = await ask(plane)
        assert (status, body) == (200, b'{"by":"api"}')
    assert not worker.received
    assert [each.headers["x-envoy-attempt-count"] for each in plane.api.received] == ["1"] * CALLS
    assert {each.headers["x-fairserve-call"] for each in plane.api.received} == {"r1"}


async def test_a_worker_that_is_left_out_finishes_its_calls(plane):
    begun, released = [], asyncio.Event()

    async def script(received, writer):
        begun.append(received)
        await streaming([b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'], end=False)(
            received, writer
        )
        if received is begun[0]:
            await released.wait()
        done = b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))

    worker = await plane.worker(script, stream=True)
    async with (
        aiohttp.ClientSession() as session,
        session.post(plane.url + PATHS[0], data=b"{}") as response,
    ):
        await response.content.readuntil(b"\n\n")
        plane.workers_file.write({})
        async with asyncio.timeout(60):
            while (await ask(plane))[2] != b'{"by":"api"}':
                pass  # Envoy has not read the file yet
        released.set()
        assert b"data: [DONE]" in await response.read()
    plane.workers_file.write({"w0": worker.address})
    async with asyncio.timeout(60):
        while (await ask(plane))[2] == b'{"by":"api"}':
            pass


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500, 503])
async def test_a_failed_attempt_falls_to_the_relay_once(plane, status):
    bad = await plane.worker(answering(status, b'{"error": "secret"}'))
    good = await plane.worker(answering(body=WHOLE))
    plane.send_to(bad.address)
    plane.decisions.body = b"x" * 100_000
    found, headers, body = await ask(plane)
    assert (found, body) == (200, b'{"by":"api"}')
    assert (len(bad.received), len(good.received), len(plane.api.received)) == (1, 0, 1)
    relayed = plane.api.received[0]
    assert relayed.body == plane.decisions.body
    assert relayed.headers["x-envoy-attempt-count"] == "2"
    assert relayed.headers["x-fairserve-call"] == "r1"
    assert not [name for name in headers if name.startswith(("x-envoy-", "x-fairserve-relay"))]
    await until(lambda: plane.decisions.ends() and plane.decisions.attempts())
    (first,) = plane.decisions.attempts()  # not that of the relay, which has not failed
    assert first.response.response_code.value == status
    assert first.request.request_headers["x-fairserve-call"] == "r1"
    address = first.common_properties.upstream_remote_address.socket_address
    assert f"{address.address}:{address.port_value}" == bad.address
    assert facts_of(plane.decisions.ends()[0]) == {"relay": True}


async def test_a_dead_worker_s_call_falls_to_the_relay(plane):
    await plane.worker(answering(body=WHOLE))
    plane.workers_file.write({"w0": free_address()})
    dead = free_address()
    plane.workers_file.write({"dead": dead})
    plane.send_to(dead)
    status, _, body = await ask(plane)
    assert (status, body) == (200, b'{"by":"api"}')


async def test_a_connection_that_breaks_before_the_header_falls_to_the_relay(plane):
    async def script(received, writer):
        writer.transport.abort()

    worker = await plane.worker(script)
    status, _, body = await ask(plane)
    assert (status, body) == (200, b'{"by":"api"}')
    assert len(worker.received) == 1
    await until(plane.decisions.attempts)
    flags = plane.decisions.attempts()[0].common_properties.response_flags
    assert flags.upstream_connection_termination or flags.upstream_remote_reset


@pytest.mark.parametrize("missed", [True, False])
async def test_an_error_of_the_relay_is_final(plane, missed):
    plane.api.script = answering(503, b'{"error": {"code": "ours"}}', **RELAYED)
    await plane.worker(answering(500))
    if missed:
        plane.send_to("10.255.0.1:1")
    status, headers, body = await ask(plane)
    assert (status, body) == (503, b'{"error": {"code": "ours"}}')
    assert len(plane.api.received) == 1
    assert "x-fairserve-relay" not in headers
    assert "x-envoy-ratelimited" not in headers


async def test_a_break_after_the_header_is_not_tried_again(plane):
    async def script(received, writer):
        await streaming([b"data: {}\n\n"], end=False)(received, writer)
        await received_by_client.wait()
        writer.transport.abort()

    received_by_client = asyncio.Event()
    await plane.worker(script, stream=True, include_usage=True)
    async with (
        aiohttp.ClientSession() as session,
        session.post(plane.url + PATHS[0], data=b"{}") as response,
    ):
        await response.content.readuntil(b"\n\n")
        received_by_client.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    assert not plane.api.received
    await until(plane.decisions.ends)
    entry = plane.decisions.ends()[0]
    flags = entry.common_properties.response_flags
    assert flags.upstream_connection_termination or flags.upstream_protocol_error
    assert facts_of(entry)["started"]
    assert "complete" not in facts_of(entry)


async def test_a_decision_leaves_a_call_to_the_relay(plane):
    worker = await plane.worker(answering(body=WHOLE))
    plane.decisions.set_headers["x-fairserve-relay"] = "1"
    status, _, body = await ask(plane)
    assert (status, body) == (200, b'{"by":"api"}')
    assert not worker.received
    assert plane.api.received[0].headers["x-fairserve-call"] == "r1"
    assert plane.api.received[0].headers["x-fairserve-relay"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/v1/models", {}),
        ("GET", "/v1/chat/completions", {}),
        ("POST", "/v1/chat/completions", {"idempotency_key": "k"}),
        ("POST", "/v1/responses", {}),
        ("POST", "/v1/messages", {}),
        ("POST", "/v1/chat/completions/more", {}),
        ("POST", "/admin/tenants", {}),
        ("GET", "/console/", {}),
        ("DELETE", "/v1/interactions/x?a=1", {}),
    ],
)
async def test_all_other_requests_go_to_the_server(plane, method, path, headers):
    worker = await plane.worker(answering(body=WHOLE))
    plane.api.script = answering(418, b"tea", x_fairserve_worker="w9", retry_after="1")
    status, found, body = await ask(plane, path, method=method, **headers)
    assert (status, body) == (418, b"tea")
    assert found["x-fairserve-worker"] == "w9"
    assert found["retry-after"] == "1"
    assert (plane.api.received[0].method, plane.api.received[0].path) == (method, path)
    assert not worker.received
    assert not plane.decisions.calls
    assert not plane.decisions.entries


async def test_a_decision_s_answer_reaches_the_client_unchanged(plane):
    await plane.worker(answering(body=WHOLE))
    for status in (401, 408, 413, 429, 500, 503):
        body = orjson.dumps({"error": {"code": str(status)}})
        answer = immediate(status, body, content_type="application/json", retry_after="7")
        plane.decisions.on_headers = lambda call, answer=answer: answer
        found, headers, text = await ask(plane)
        assert (found, text) == (status, body)
        assert headers["content-type"] == "application/json"
        assert headers["retry-after"] == "7"


async def test_an_order_to_stop_ends_a_running_stream(plane):
    """An ImmediateResponse on the open stream of the decision resets the worker's connection."""
    worker = await plane.worker(
        streaming([b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'], end=False), stream=True
    )
    async with (
        aiohttp.ClientSession() as session,
        session.post(plane.url + PATHS[0], data=b"{}") as response,
    ):
        await response.content.readuntil(b"\n\n")
        call = plane.decisions.calls[0]
        assert not call.ended.is_set()
        call.cancel.put_nowait(immediate(503, b"{}"))
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await until(worker.lost.is_set)
    await until(call.ended.is_set)
    await until(plane.decisions.ends)
    assert "complete" not in facts_of(plane.decisions.ends()[0])


async def test_an_order_to_stop_answers_a_whole_call(plane):
    """The worker has the call and has not answered."""

    arrived = asyncio.Event()

    async def script(received, writer):
        arrived.set()
        await asyncio.Event().wait()

    worker = await plane.worker(script)
    asked = asyncio.create_task(ask(plane))
    await arrived.wait()
    plane.decisions.calls[0].cancel.put_nowait(immediate(503, b'{"stopped": 1}'))
    status, _, body = await asked
    assert (status, body) == (503, b'{"stopped": 1}')
    assert len(worker.received) == 1
    assert not plane.api.received


async def test_a_client_that_leaves_ends_the_decision(plane):
    """First while its call waits, then while a worker has it."""
    await plane.worker(
        streaming([b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'], end=False), stream=True
    )
    plane.decisions.hold.clear()
    async with aiohttp.ClientSession() as session:
        waiting = asyncio.create_task(session.post(plane.url + PATHS[0], data=b"{}"))
        await until(lambda: plane.decisions.calls and plane.decisions.calls[0].body)
        waiting.cancel()
        await until(plane.decisions.calls[0].ended.is_set)
        plane.decisions.hold.set()
        async with session.post(plane.url + PATHS[0], data=b"{}") as response:
            await response.content.readuntil(b"\n\n")
            response.close()
    await until(plane.decisions.calls[1].ended.is_set)
    await until(plane.decisions.ends)
    entry = plane.decisions.ends()[-1]
    assert entry.common_properties.response_flags.downstream_connection_termination
    assert entry.common_properties.access_log_type == pb.DOWNSTREAM_END
