"""Two real vLLM servers with the plug-in run behind the platform: part of ``make test-vllm``.

They serve the built-in model and an adapter of it on the CPU. They receive exactly what a client sent,
their cache events update the router's tree, and one of them may die at any time.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import torch
import vllm_world  # noqa: F401, skips where vLLM is missing
from anthropic import Anthropic, BadRequestError
from anthropic.types import RawMessageStreamEvent
from gateway_server import ChildServer
from openai.types.responses import Response, ResponseStreamEvent
from openai_types import (
    ADDED_BY_VLLM,
    ADDED_TO_RESPONSES,
    EVENTS_OF_A_TRUNCATED_TEXT,
    chat_chunks,
    strictly,
    text_chunks,
)
from processes import eventually, free_port
from pydantic import TypeAdapter
from safetensors.torch import save_file

if importlib.util.find_spec("vllm._C") is None:
    pytest.skip("this build of vLLM has no kernels for CPUs", allow_module_level=True)

from fairserve.engine.torch.builtin_model import ensure_builtin_model

MODEL, ADAPTER = "tiny", "sql"
BLOCK = 32
LORA_RANK = 8
"""The smallest that vLLM takes."""
READY_S = 600
LONG = 800
"""Output tokens of a call that runs for some seconds."""


class VllmServer:
    """vLLM's API server with KV events, on free ports."""

    def __init__(self, model, tokenizer, adapter, folder, sockets, name):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # Creating a client takes longer than a request. On a busy machine an answer takes seconds.
        self.client = httpx.Client(timeout=60)
        events, replay = f"ipc://{sockets}/{name}-events", f"ipc://{sockets}/{name}-replay"
        self.spec = {"id": name, "url": self.url, "kv_events": events, "kv_replay": replay}
        """The worker of a fleet file."""
        self.log_path = folder / f"{name}.log"
        publisher = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": events,
            "replay_endpoint": replay,
        }
        flags = {
            "model": model,
            "tokenizer": tokenizer,
            "served-model-name": MODEL,
            "dtype": "float32",
            "max-model-len": 1024,
            "block-size": BLOCK,
            "num-gpu-blocks-override": 400,
            "max-num-seqs": 4,
            "host": "127.0.0.1",
            "port": self.port,
            "scheduler-cls": "fairserve.engine.vllm.scheduler.DLPMScheduler",
            "kv-events-config": json.dumps(publisher),
            "structured-outputs-config": json.dumps(
                {"backend": "xgrammar", "disable_any_whitespace": True}
            ),
            "tool-call-parser": "hermes",
            "lora-modules": f"{ADAPTER}={adapter}",
            "max-lora-rank": LORA_RANK,
        }
        arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments),
                *("--enforce-eager", "--enable-prefix-caching", "--enable-auto-tool-choice"),
                *("--enable-prompt-tokens-details", "--enable-lora"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its engine process must end with it
            env={
                **os.environ,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_LOGGING_LEVEL": "INFO",
                "FAIRSERVE_SCHEDULER_OPTIONS": "quantum=500",
            },
        )
        log.close()

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def ready(self):
        assert self.process.poll() is None, self.log()
        try:
            return self.client.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def running(self):
        """Return the number of calls in its batch now."""
        lines = self.client.get(f"{self.url}/metrics").text.splitlines()
        gauge = (line for line in lines if line.startswith("vllm:num_requests_running"))
        return sum(float(line.rpartition(" ")[2]) for line in gauge)

    def kill(self):
        """Kill the server immediately, with its engine."""
        self.client.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def model():
    """Return the built-in model: random weights, a tokenizer and its template."""
    return str(ensure_builtin_model())


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    """Return the model's folder as it is where a tokenizer has another form: without its file."""
    folder = tmp_path_factory.mktemp("checkpoint")
    for file in Path(model).iterdir():
        if file.name != "tokenizer.json":
            (folder / file.name).symlink_to(file)
    return str(folder)


@pytest.fixture(scope="module")
def adapter(model, tmp_path_factory):
    """Return an adapter of the built-in model that changes the queries of its layers at random."""
    shape = json.loads(Path(model, "config.json").read_text())
    width, folder = shape["hidden_size"], tmp_path_factory.mktemp("adapter")
    heads = shape["num_attention_heads"] * (
        shape.get("head_dim") or width // shape["num_attention_heads"]
    )
    generator, weights = torch.Generator().manual_seed(1), {}
    for layer in range(shape["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(LORA_RANK, width, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(heads, LORA_RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
        "base_model_name_or_path": model,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def servers(model, checkpoint, adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("servers")
    sockets = tempfile.mkdtemp(prefix="fs-")  # the path of a socket is limited in length
    started = [
        VllmServer(checkpoint, model, adapter, folder, sockets, f"w{number}") for number in range(2)
    ]
    try:
        for server in started:
            eventually(server.ready, server.log, deadline_s=READY_S)
        yield started
    finally:
        for server in started:
            server.kill()
        shutil.rmtree(sockets)


@pytest.fixture(scope="module")
def platform(servers, model, tmp_path_factory):
    fleet = {
        "workers": [server.spec for server in servers],
        "models": {MODEL: {"tokenizer": model}},
    }
    path = tmp_path_factory.mktemp("fleet") / "fleet.json"
    path.write_text(json.dumps(fleet))
    settings = {
        "fleet_file": path,
        "cache_isolation": "none",
        "log_level": "info",
        "keepalive_s": "3600",  # headers before a grant, as a slow machine sees them, name no worker
    }
    with ChildServer(tmp_path_factory.mktemp("platform") / "data", **settings) as platform:
        platform.wait_for(
            "/admin/cluster",
            platform.admin_key,
            lambda cluster: sum(worker["ready"] for worker in cluster["workers"]) == 2,
        )
        yield platform


@pytest.fixture(scope="module")
def client(platform):
    return platform.openai(platform.new_app()["api_key"])


def workers(platform):
    cluster = platform.call(platform.admin_key, "GET", "/admin/cluster")
    return {worker["worker_id"]: worker for worker in cluster["workers"]}


def test_the_plug_in_runs_in_the_servers(servers, platform):
    assert all("in the order of dlpm" in server.log_path.read_text() for server in servers)
    for worker in workers(platform).values():
        assert worker["version"].startswith("0.3")
        assert worker["model"] == MODEL

    def views():  # until the first KV events, the router's own
        return {worker["cache_view"] for worker in workers(platform).values()}

    eventually(lambda: views() == {"worker"}, views)


def test_response_format_arrives_untouched(client):
    """The weights are random: only the server's grammar can cause this JSON."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "far": {"type": "boolean"}},
        "required": ["city", "far"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Where?"}],
        max_tokens=100,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": schema, "strict": True},
        },
        extra_body={"cache_salt": "a/b@c"},  # vLLM rejects such a salt; the server's is another
    )
    place = json.loads(answer.choices[0].message.content)
    assert place["city"] in ("Oslo", "Rome")
    assert set(place) == {"city", "far"}
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_arrive_untouched(client, servers, stream):
    """Random weights call no tool by themselves; the server makes this call directly."""
    parameters = {
        "type": "object",
        "properties": {"unit": {"enum": ["metric", "imperial"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "How warm is it?"}],
        "max_tokens": 120,
        "temperature": 0,
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    direct = httpx.post(f"{servers[0].url}/v1/chat/completions", json=body, timeout=120).json()
    expected = direct["choices"][0]["message"]["tool_calls"][0]["function"]
    answer = client.chat.completions.create(**body, stream=stream)
    if stream:
        deltas = [chunk.choices[0].delta for chunk in answer if chunk.choices]
        calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
    else:
        calls = [call.function for call in answer.choices[0].message.tool_calls]
    assert "".join(call.name or "" for call in calls) == expected["name"] == "weather"
    arguments = "".join(call.arguments or "" for call in calls)
    assert json.loads(arguments) == json.loads(expected["arguments"])


def typed(stream):
    """Return the events of a response, each validated strictly against the types of the SDK."""
    return [
        strictly(ResponseStreamEvent, event.model_dump(exclude_unset=True), ADDED_TO_RESPONSES)
        for event in stream
    ]


def test_responses_are_answered_as_chat_calls(client):
    """A tool call, its result and a parsed answer are one chain; events have the types of the SDK."""
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "name": "weather", "parameters": parameters}
    stream = client.responses.create(
        model=MODEL,
        input="Where?",
        tools=[tool],
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=200,
        temperature=0,
        stream=True,
    )
    events = typed(stream)
    kinds, asked = [event.type for event in events], events[-1].response
    assert asked.status == "completed", (asked.output, asked.usage)
    (call,) = asked.output
    assert call.name == "weather"
    json.loads(call.arguments)  # the weights are random: without `strict` it may be any JSON
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    answer = client.responses.create(
        model=MODEL,
        input=[result],
        previous_response_id=asked.id,
        text={"format": {"type": "json_schema", "name": "place", "schema": parameters}},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=100,
        temperature=0,
    )
    assert json.loads(answer.output_text)["city"] in ("Oslo", "Rome")
    assert answer.usage.input_tokens > asked.usage.input_tokens
    assert len(answer.output[0].content[0].logprobs[0].top_logprobs) == 2
    assert client.responses.retrieve(answer.id).output_text == answer.output_text


def test_the_text_of_a_response_is_streamed_with_the_types_of_the_sdk(client):
    asked = {
        "model": MODEL,
        "input": "Tell me.",
        "max_output_tokens": 16,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    events = typed(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert list(dict.fromkeys(event.type for event in events)) == EVENTS_OF_A_TRUNCATED_TEXT
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert text == last.output_text
    assert last.usage.output_tokens == 16
    whole = client.responses.create(**asked)
    strictly(Response, whole.model_dump(exclude_unset=True), ADDED_TO_RESPONSES)
    assert whole.output_text == text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_chunks_have_the_types_of_the_sdk(platform, client, path):
    chat = path.endswith("/chat/completions")
    said = (
        {"messages": [{"role": "user", "content": "Tell me."}]} if chat else {"prompt": "Tell me."}
    )
    body = {"model": MODEL, "max_tokens": 8, "ignore_eos": True, "n": 2, "seed": 1, **said}
    usage = {"include_usage": True, "continuous_usage_stats": True}
    text = httpx.post(
        platform.url + path,
        json=body | {"stream": True, "stream_options": usage},
        headers={"Authorization": f"Bearer {client.api_key}"},
        timeout=READY_S,
    ).text
    chunks = (chat_chunks if chat else text_chunks)(text, ADDED_BY_VLLM)
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}
    assert all(chunk.usage is not None for chunk in chunks)
    assert chunks[-1].usage.completion_tokens == 16


def test_cache_events_of_a_server_determine_the_routing(platform, servers, client):
    """The prompt reaches the second server without the platform: only its KV events reveal it."""
    prompt = "A long report that only one of the servers has read. " * 12
    before = workers(platform)["w1"]["kv_events"]["events"]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    answer = httpx.post(f"{servers[1].url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    eventually(lambda: workers(platform)["w1"]["kv_events"]["events"] > before)
    for suffix in ("What does it say?", "Who wrote it?", "Is it true?"):
        raw = client.completions.with_raw_response.create(
            model=MODEL, prompt=prompt + suffix, max_tokens=2
        )
        assert raw.headers["x-fairserve-worker"] == "w1"
        usage = raw.parse().usage
        assert usage.prompt_tokens_details.cached_tokens >= 500, usage


def test_an_adapter_is_a_model_of_the_servers(platform, client):
    listed = client.models.list().data
    assert {each.id: each.model_extra.get("parent") for each in listed} == {
        MODEL: None,
        ADAPTER: MODEL,
    }
    asked = {"prompt": "Tell me.", "max_tokens": 16, "temperature": 0}
    asked["extra_body"] = {"ignore_eos": True}
    base, own = (client.completions.create(model=each, **asked) for each in (MODEL, ADAPTER))
    assert (base.model, own.model) == (MODEL, ADAPTER)
    assert own.usage.completion_tokens == 16
    assert own.choices[0].text != base.choices[0].text, "the adapter changes the model"


@pytest.mark.parametrize(("owner", "other"), [(MODEL, ADAPTER), (ADAPTER, MODEL)])
def test_cache_events_of_an_adapter_and_its_base_stay_apart(
    platform, servers, client, owner, other
):
    """The prompt reaches the second server without the platform: only its KV events reveal it."""
    prompt = f"A long report of {owner} that only one of the servers has read. " * 10
    before = workers(platform)["w1"]["kv_events"]["blocks"]
    body = {"model": owner, "prompt": prompt, "max_tokens": 1}
    answer = httpx.post(f"{servers[1].url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    eventually(lambda: workers(platform)["w1"]["kv_events"]["blocks"] > before)

    def cached(model, suffix):
        """Return where a call is placed, and how many tokens of its prompt are cached there."""
        raw = client.completions.with_raw_response.create(
            model=model, prompt=prompt + suffix, max_tokens=2
        )
        details = raw.parse().usage.prompt_tokens_details
        return raw.headers["x-fairserve-worker"], details.cached_tokens

    place, found = cached(owner, "What does it say?")
    assert (place, found >= 500) == ("w1", True)
    assert cached(other, "Who wrote it?")[1] == 0


def test_the_servers_metrics_are_shown(platform):
    """The metrics include calls that the platform did not send."""

    def settled():
        seen = workers(platform)["w1"]["reported"]
        hits = seen["prefix_queried_tokens"] > seen["prefix_hit_tokens"] > 0
        return hits and seen["running"] == seen["waiting"] == 0

    eventually(settled, platform.log)


def test_prompts_are_counted_by_the_server_if_its_checkpoint_has_no_tokenizer_json(
    servers, tmp_path
):
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"workers": [servers[0].spec]}))
    with ChildServer(tmp_path / "data", fleet_file=path) as platform:
        client = platform.openai(platform.new_app()["api_key"])
        (model,) = platform.call(platform.admin_key, "GET", "/admin/cluster")["models"]
        assert model["tokenizer"] == "worker"
        answer = client.completions.create(model=MODEL, prompt="x" * 1014, max_tokens=10)
        assert answer.usage.prompt_tokens == 1014
        with pytest.raises(openai.BadRequestError, match="the prompt has 1015"):  # estimated: 254
            client.completions.create(model=MODEL, prompt="x" * 1015, max_tokens=10)


def test_a_vllm_server_may_be_used_as_a_plain_one(servers, model, tmp_path):
    """One server is configured as a plain one: two calls at a time, the rest in the local queue."""
    fleet = {
        "workers": [
            {"id": "plain", "url": servers[0].url, "kind": "openai", "model": MODEL}
            | {"concurrency": 2, "kv_tokens": 400 * BLOCK}
        ],
        "models": {MODEL: {"tokenizer": model}},
    }
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(fleet))
    with (
        ChildServer(tmp_path / "data", fleet_file=path) as platform,
        ThreadPoolExecutor(6) as threads,
    ):
        client = platform.openai(platform.new_app()["api_key"])

        # A plain server never gets vLLM's ignore_eos.
        no_end = {str(json.loads(Path(model, "config.json").read_text())["eos_token_id"]): -100}

        def call(number):
            body = {"model": MODEL, "prompt": f"{number} " * 50, "max_tokens": 200}
            return client.completions.create(**body, logit_bias=no_end).usage

        calls, queues = [], []

        def full():
            if all(each.result() for each in calls if each.done()) and all(map(Future.done, calls)):
                # Initially, and after all of them ended before a check.
                calls.extend(threads.submit(call, number) for number in range(6))
            queues.append(workers(platform)["plain"]["local_queue"])
            return queues[-1]["waiting"] > 0

        eventually(full, platform.log)
        usages = [each.result() for each in calls]
    assert {(usage.prompt_tokens, usage.completion_tokens) for usage in usages} == {(100, 200)}
    assert max(queue["sent"] for queue in queues) == 2


def test_a_dying_server_affects_only_its_started_calls(platform, servers):
    """Calls that had started there end with an error event; the second server serves the others."""
    app = platform.new_app(name="crash")
    headers = {"Authorization": f"Bearer {app['api_key']}"}
    begun, ended = {}, set()
    """Workers of calls that have begun to be answered, and the calls that have ended."""

    def call(number):
        body = {
            "model": MODEL,
            "prompt": f"Number {number}: " + f"{number} " * 40,
            "max_tokens": LONG,
            "user": f"u{number % 4}",
            "stream": True,
            "ignore_eos": True,
        }
        pieces, error, finish = 0, None, None
        with httpx.stream(
            "POST", f"{platform.url}/v1/completions", json=body, headers=headers, timeout=280
        ) as answer:
            assert answer.status_code == 200, answer.read()
            begun[number] = worker = answer.headers["x-fairserve-worker"]
            for line in answer.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                error = error or event.get("error")
                for choice in event.get("choices") or ():
                    pieces += 1
                    finish = choice["finish_reason"] or finish
            ended.add(number)
        return number, worker, pieces, error or finish

    with ThreadPoolExecutor(17) as threads:
        calls = [threads.submit(call, number) for number in range(14)]

        def busy():
            """Return whether two calls are answered there, while others of the fourteen still wait."""
            there = sum(worker == "w1" and n not in ended for n, worker in begun.copy().items())
            # A client that reads slowly would count calls that have ended; the server does not.
            return there >= 2 and servers[1].running() >= 2

        eventually(busy, platform.log)
        servers[1].kill()
        begun_before = set(begun)
        # On a busy machine all others may have begun: some are sent before the platform knows.
        calls += [threads.submit(call, number) for number in range(14, 17)]
        answers = [each.result() for each in calls]

    broken = [answer for answer in answers if isinstance(answer[3], dict)]
    whole = [answer for answer in answers if answer not in broken]
    assert 1 <= len(broken) <= 4, answers
    assert all(worker == "w1" and pieces > 0 for _, worker, pieces, _ in broken), broken
    assert {error["code"] for *_, error in broken} == {"worker_failed"}, broken
    assert {finish for *_, finish in whole} == {"length"}, whole
    # A call that the dead server had answered in full may be read after it died.
    later = {worker for number, worker, *_ in whole if number not in begun_before}
    assert "w0" in later, (begun_before, whole)

    def rows():
        with contextlib.closing(sqlite3.connect(platform.data_dir / "fairserve.sqlite3")) as db:
            found = db.execute(
                "SELECT outcome, output_tokens FROM ledger_calls WHERE app_id = ?", (app["id"],)
            ).fetchall()
        return sorted(found) if len(found) == 17 else None

    failed = [tokens for outcome, tokens in eventually(rows) if outcome == "failed"]
    assert len(failed) == len(broken)
    assert min(failed) > 0
    assert rows()[: len(whole)] == [("completed", LONG)] * len(whole)

    def alone():
        seen = workers(platform)
        return seen["w1"]["state"] == "open circuit" and seen["w0"]["ready"]

    eventually(alone, platform.log)


def test_messages_of_anthropic_are_answered_by_vllm(platform):
    """Random weights call no tool by themselves; the server makes this call directly."""
    key = platform.new_app(name="messages")["api_key"]
    # No sampling, as above: random weights may write blanks without end, which the grammar allows.
    tool = {
        "name": "look",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"enum": ["here"]}},
            "required": ["place"],
            "additionalProperties": False,
        },
    }
    asked = {
        "model": MODEL,
        "max_tokens": 24,
        "extra_body": {"temperature": 0},
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Where?"}]}],
    }
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    order = ["message_start", *block, "message_delta", "message_stop"]
    with Anthropic(base_url=platform.url, api_key=key, max_retries=0) as client:
        for more, kind, reason in (
            ({}, "text", "max_tokens"),
            (
                {
                    "tools": [tool],
                    "tool_choice": {"type": "tool", "name": "look"},
                    "max_tokens": 200,
                },
                "tool_use",
                "tool_use",
            ),
        ):
            found = [
                TypeAdapter(RawMessageStreamEvent).validate_python(event.model_dump())
                for event in client.messages.create(stream=True, **asked | more)
            ]
            assert list(dict.fromkeys(event.type for event in found)) == order
            start = next(event for event in found if event.type == "content_block_start")
            assert start.content_block.type == kind
            end = next(event for event in found if event.type == "message_delta")
            assert end.delta.stop_reason == reason
            assert end.usage.output_tokens > 0
        with pytest.raises(BadRequestError, match="max_tokens"):
            client.messages.create(**asked | {"max_tokens": 1025})
