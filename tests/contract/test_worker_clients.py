"""Clients of both kinds of workers fulfil the same contract, whatever the server is."""

import asyncio
import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from received import send
from scripted_server import ScriptedServer

from fairserve.engine.wire.base import (
    WorkerRejectedError,
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.circuit import Circuit
from fairserve.engine.wire.client import HttpWorkerClient, worker_session
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.queued_client import QueuedClient
from fairserve.engine.wire.watched_client import WatchedClient
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.scheduling.local.dlpm import Dlpm


def request(word="ok", name="call", **body):
    messages = [{"role": "user", "content": f"{word} please"}]
    return WorkerRequest(
        "/v1/chat/completions",
        {"model": "m", "messages": messages, "max_tokens": 5, **body},
        name,
        "tenant/user",
        weight=2.0,
        cache_salt="tenant",
        token_ids=np.arange(12, dtype=np.uint32),
        max_output_tokens=5,
    )


class World:
    """A client as the pool builds it, before a scripted server."""

    def __init__(self, kind, server, session, **options):
        self.server = server
        self.circuit, self.opened = Circuit(), []
        self.http = HttpWorkerClient(server.url, session, kind, **options)
        self.watched = WatchedClient(
            self.http, self.circuit, time.monotonic, lambda: self.opened.append(True)
        )
        self.client = self.watched
        if kind == "openai":
            queue = LocalQueue(Dlpm(), 2, 4096)
            self.client = QueuedClient(self.watched, queue, asyncio.get_running_loop().time)

    def at_rest(self):
        queue = self.client.queue if isinstance(self.client, QueuedClient) else None
        waits = (queue.waiting, queue.sent) if queue else (0, 0)
        return self.watched.sequences == 0 and waits == (0, 0)


@pytest.fixture(params=["vllm", "openai"])
async def world(request):
    async with ScriptedServer(request.param) as server, worker_session() as session:
        made = World(request.param, server, session)
        made.session = session
        yield made


async def read(world, *arguments, **more):
    stream = send(world.client, request(*arguments, **more))
    try:
        return [chunk.data async for chunk in stream]
    finally:
        stream.close()


async def come(world, answer):
    """Wait until the server has the call; raise the error that prevented it."""
    arrived = asyncio.create_task(world.server.arrived.wait())
    ended = asyncio.create_task(anext(answer))
    await asyncio.wait({arrived, ended}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        ended.result()
    ended.cancel()
    seen = (world.server.paths, len(world.server.bodies), world.server.under_way)
    assert arrived.done(), f"it did not come: {seen}"


@pytest.mark.parametrize("word", ["ok", "many", "silent"])
async def test_an_answer_has_its_usage(world, word):
    chunks = await read(world, word)
    assert chunks[-1 if word == "silent" else -2]["choices"][0]["finish_reason"] == "stop"
    meter, seen = UsageMeter(10, 0), []
    for chunk in chunks:
        meter.read(chunk)
        seen.append(meter.usage().output_tokens)
    assert seen == sorted(seen), "the number only grows"
    # Without usage: 13 bytes are four tokens, at four a token.
    assert meter.total().output_tokens == (4 if word == "silent" else 3)
    assert meter.total().prompt_tokens == (10 if word == "silent" else 12)
    assert world.at_rest()
    assert world.circuit.state == "closed"


async def test_a_stream_that_is_left_has_used_the_output_of_all_samples(world):
    """vLLM counts the output of each sample apart, in the usage of its own chunks."""
    *chunks, _ = await read(world, "each", n=4)
    meter, seen = UsageMeter(12, 0), []
    for chunk in chunks[1:13]:
        meter.read(chunk)
        seen.append(meter.usage().output_tokens)
        assert meter.total().output_tokens == seen[-1], "what it has used if its client leaves"
    assert seen == list(range(1, 13))


async def test_the_request_has_the_expected_fields(world):
    await read(world, n=2, top_k=3, priority=1)
    (body,) = world.server.bodies
    assert (body["stream"], body["n"]) == (True, 2)
    assert body.get("top_k") == (3 if world.http.dialect == "vllm" else None)
    assert "priority" not in body
    if world.http.dialect == "vllm":
        assert body["vllm_xargs"] == {"client_id": "tenant/user", "call_id": "call", "weight": 2.0}
        assert body["cache_salt"] == "tenant"
        assert body["stream_options"]["continuous_usage_stats"]
    else:
        assert not {"vllm_xargs", "cache_salt"} & set(body)
        assert body["stream_options"] == {"include_usage": True}


async def test_a_salt_is_sent_only_to_workers_that_support_it(world):
    await read(world, cache_salt="mine")
    (body,) = world.server.bodies
    assert ("cache_salt" in body) == (world.http.dialect == "vllm")


@pytest.mark.parametrize("word", ["busy", "die", "empty", "later", "away"])
async def test_a_call_that_has_not_started_may_be_retried_elsewhere(world, word):
    with pytest.raises(WorkerUnavailableError) as raised:
        await read(world, word)
    assert not raised.value.unreachable
    assert raised.value.pause_s == (7.0 if word == "later" else None)
    assert world.at_rest()


async def test_an_unreachable_worker_is_reported(world):
    gone = World(world.http.dialect, SimpleNamespace(url="http://127.0.0.1:1"), world.session)
    with pytest.raises(WorkerUnavailableError) as raised:
        await read(gone)
    assert raised.value.unreachable
    assert gone.at_rest()


async def test_a_rejection_by_the_worker_is_passed_on(world):
    with pytest.raises(WorkerRejectedError) as raised:
        await read(world, "refuse")
    assert (raised.value.status, raised.value.error["param"]) == (400, "tools")
    assert world.at_rest()


@pytest.mark.parametrize("word", ["break", "cut", "nothing"])
async def test_a_broken_answer_is_an_error(world, word):
    with pytest.raises(WorkerStreamError):
        await read(world, word)
    assert world.at_rest()


async def test_a_disconnect_cancels_on_the_worker(world):
    stream = send(world.client, request("hold"))
    await anext(stream)
    stream.close()
    stream.close()
    await asyncio.wait_for(world.server.gone.wait(), 60)
    assert world.server.disconnects == 1
    assert world.at_rest()


async def test_a_disconnect_before_the_answer_cancels_on_the_worker(world):
    answer = send(world.client, request("stall"))
    await come(world, answer)
    assert answer.may_have_begun, "such a server computes the prompt before it sends anything"
    world.http.kind = "embedded"
    assert not answer.may_have_begun, "ours sends a chunk, or the head, as soon as it begins"
    answer.close()
    await asyncio.wait_for(world.server.gone.wait(), 60)
    assert world.at_rest()


async def test_only_worker_failures_open_the_circuit(world):
    calls = world.circuit.options.calls
    world.server.retry_after = "0"
    for word in ("refuse", "later"):
        for _ in range(calls + 1):
            with pytest.raises((WorkerRejectedError, WorkerUnavailableError)):
                await read(world, word)
    for _ in range(calls + 1):
        world.server.arrived.clear()
        answer = send(world.client, request("stall"))
        await come(world, answer)
        answer.close()
    for word in ["busy"] * (calls - 1) + ["ok"] + ["die", "busy", "empty"]:
        with contextlib.suppress(WorkerUnavailableError):
            await read(world, word)
    assert world.circuit.state == "closed", "one that begins ends the row"
    for _ in range(calls - 3):
        with pytest.raises(WorkerUnavailableError):
            await read(world, "busy")
    assert world.circuit.state == "open"
    assert "it answered 503: busy" in world.circuit.reason
    assert world.opened == [True]


async def test_an_answer_that_never_begins_times_out(world):
    slow = World(world.http.dialect, world.server, world.session, begin_s=0.05)
    with pytest.raises(WorkerUnavailableError):
        await read(slow, "stall")
    assert slow.at_rest()


async def test_a_whole_answer_has_no_time_out_and_starts_once(world):
    """Its header may arrive at its end only."""
    asked = replace(request(), stream=False)
    slow = World(world.http.dialect, world.server, world.session, begin_s=0.0)
    answer = send(slow.client, asked)
    (chunk,) = [chunk.data async for chunk in answer]
    assert chunk["choices"][0]["message"]["content"] == "one two three"
    assert (slow.at_rest(), answer.starts) == (True, 1)
    (body,) = world.server.bodies
    assert (body["stream"], "stream_options" in body) == (False, False)
    with pytest.raises(WorkerUnavailableError, match="no answer within 0 s"):
        await anext(send(slow.client, replace(asked, stream=True)))


async def test_a_token_is_sent_with_every_request(world):
    world.server.token = "secret"
    with pytest.raises(WorkerUnavailableError, match="our token or account"):
        await read(world)
    with pytest.raises(WorkerUnavailableError, match="401"):
        await world.http.facts()
    world.http.authorize("secret")
    assert await read(world)
    assert (await world.http.facts()).model == "m"


async def test_facts_are_read(world):
    world.server.models = ["base", "adapter"]
    world.server.lengths = {"base": {"max_model_len": 100}, "adapter": {"parent": "base"}}
    facts = await world.http.facts("adapter")
    assert (facts.models, facts.model) == (("base", "adapter"), "base")
    assert facts.adapters == {"adapter"}
    assert facts.context_tokens == 100
    assert (await world.http.facts()).model == "base", "the first that it lists"
    world.server.lengths = {"base": {"meta": {"n_ctx": 200, "n_ctx_train": 900}}}
    assert (await world.http.facts()).context_tokens == 200, "as llama.cpp reports it"
    for odd in (10**30, 2**63, -1, 0, True, "100", 4096.0, None, [100]):
        world.server.lengths = {"base": {"max_model_len": odd}}
        assert (await world.http.facts()).context_tokens is None, odd
    for odd in (None, 7, ["fairserve"], {}):
        world.server.lengths = {"base": {"owned_by": odd}}
        assert (await world.http.facts()).kind == world.http.dialect, odd
    expected = (1024, "0.33.0") if world.http.dialect == "vllm" else (None, None)
    assert (facts.kv_capacity_tokens, facts.version) == expected
    with pytest.raises(ValueError, match="does not serve 'other'; it serves base, adapter"):
        await world.http.facts("other")
    world.server.models = []
    with pytest.raises(ValueError, match="no model"):
        await world.http.facts()


@pytest.mark.parametrize(
    "tokens",
    [None, 7, "12", [], [[1], [2]], ["1"], [1.5], [True], [None], [-1], [2**32], [2**70], {}],
    ids=repr,
)
async def test_a_prompt_is_counted_by_a_list_of_ids_only(world, tokens):
    world.server.tokens = tokens
    with pytest.raises(WorkerUnavailableError, match="/tokenize"):
        await world.http.tokenize({"model": "m", "prompt": "a"})
    world.server.tokens = [1, 2**32 - 1]
    assert list(await world.http.tokenize({"model": "m", "prompt": "a"})) == [1, 2**32 - 1]


async def test_a_prompt_has_no_more_tokens_than_its_bytes_and_a_template(world):
    world.server.tokens = [7] * 1_100
    with pytest.raises(WorkerUnavailableError, match="counts 1100 tokens in 26 bytes"):
        await world.http.tokenize({"model": "m", "prompt": "a"})
    assert len(await world.http.tokenize({"model": "m", "prompt": "a" * 100})) == 1_100
    world.server.tokens = [7] * 1_000_000
    with pytest.raises(WorkerUnavailableError, match="longer than"):
        await world.http.tokenize({"model": "m", "prompt": "a"})


async def test_probes_report_health(world):
    assert await world.http.probe() == ""
    world.server.healthy = False
    world.http._well_until_s = 0.0
    path, status = ("/health", 503) if world.http.dialect == "vllm" else ("/v1/models", 500)
    assert await world.http.probe() == f"{path} answers {status}"
    world.http.base_url = "http://user:secret@127.0.0.1:1"
    wrong = await world.http.probe()
    assert "/health" in wrong
    assert "secret" not in wrong


async def test_models_are_not_polled_without_a_health_check(world):
    for _ in range(20):
        assert await world.http.probe() == ""
    asked = world.server.paths.count("/v1/models")
    assert asked == (0 if world.http.dialect == "vllm" else 1)
