"""A real worker process, driven by the openai client and by plain HTTP."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import openai
import pytest
from kv_following import Following
from worker_process import COMMAND, DEADLINE_S, running

from fairserve.engine.base import KvEndpoints
from fairserve.engine.worker_metrics import kv_endpoints_of

MODEL = "fairserve-tiny-random"


@pytest.fixture(scope="module")
def worker():
    with running() as each:
        yield each


def chat(content="Hello", **more):
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]} | more


def sse(response):
    lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_the_ready_line_and_the_model_list(worker):
    assert worker.ready["event"] == "ready"
    assert worker.ready["model"] == MODEL
    assert worker.ready["kv_capacity_tokens"] == 65536
    (model,) = worker.openai.models.list().data
    assert model.id == MODEL
    assert model.max_model_len == worker.ready["max_model_len"] == 16384
    assert worker.http.get("/health").status_code == 200
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="4096"} 1'
    assert info in worker.http.get("/metrics").text


def test_chat_streamed_and_whole_are_the_same(worker):
    whole = worker.openai.chat.completions.create(**chat(max_tokens=30, seed=4))
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert whole.usage.completion_tokens == len(choice.message.content) == 30
    stream = worker.openai.chat.completions.create(
        **chat(max_tokens=30, seed=4), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content for chunk in chunks[:-1])
    assert text == choice.message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 30
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_completions_of_text_and_of_token_ids_are_the_same(worker):
    prompt = "Ein Satz mit Ümläuten"
    whole = worker.openai.completions.create(
        model=MODEL, prompt=prompt, max_tokens=20, temperature=0
    )
    stream = worker.openai.completions.create(
        model=MODEL, prompt=list(prompt.encode()), max_tokens=20, temperature=0, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].text == ""
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.usage.prompt_tokens == len(prompt.encode())
    assert worker.openai.completions.create(model=MODEL, prompt="x").usage.completion_tokens == 16


def test_several_samples(worker):
    body = chat("Long enough for two pages of tokens.", max_tokens=12, n=3, seed=1)
    whole = worker.openai.chat.completions.create(**body)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole.usage.completion_tokens == 36
    streamed = ["", "", ""]
    roles = []
    for chunk in worker.openai.chat.completions.create(**body, stream=True):
        (choice,) = chunk.choices
        streamed[choice.index] += choice.delta.content
        if choice.delta.role:
            roles.append(choice.index)
    assert streamed == texts
    assert sorted(roles) == [0, 1, 2]


def test_continuous_usage_and_cached_tokens(worker):
    body = chat("The same beginning of every call. " * 3, max_tokens=5, temperature=0, stream=True)
    body |= {"cache_salt": "one", "stream_options": {"continuous_usage_stats": True}}
    body |= {"vllm_xargs": {"client_id": "c", "call_id": "call-1", "weight": 0.5}}
    with worker.http.stream("POST", "/v1/chat/completions", json=body) as response:
        first = sse(response)
    assert {chunk["id"] for chunk in first} == {"chatcmpl-call-1"}
    assert [chunk["usage"]["completion_tokens"] for chunk in first] == [0, 1, 2, 3, 4, 5]
    assert first[0]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    prompt_tokens = first[0]["usage"]["prompt_tokens"]
    for salt, cached in (("one", (prompt_tokens - 1) // 16 * 16), ("two", 0)):
        with worker.http.stream(
            "POST", "/v1/chat/completions", json=body | {"cache_salt": salt}
        ) as response:
            again = sse(response)
        assert again[0]["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
        assert [chunk["choices"] for chunk in again] == [chunk["choices"] for chunk in first]


def test_stop_strings(worker):
    body = chat(max_tokens=40, seed=9)
    text = worker.openai.chat.completions.create(**body).choices[0].message.content
    stop = text[10:13]
    cut = worker.openai.chat.completions.create(**body, stop=["never so", stop]).choices[0]
    assert cut.message.content == text[: text.index(stop)]
    assert cut.finish_reason == "stop"


def test_many_at_once_answer_as_one_at_a_time(worker):
    def answer(number):
        body = chat(f"Question {number}", max_tokens=25, temperature=0)
        return worker.openai.chat.completions.create(**body).choices[0].message.content

    alone = [answer(number) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(answer, range(6))) == alone


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_the_pages(worker, stream):
    worker.wait_until_idle()
    before = worker.metric("generation_tokens_total")
    body = chat("bye", max_tokens=16000, stream=stream)
    with httpx.Client(base_url=worker.url, timeout=0.5 if not stream else DEADLINE_S) as client:
        if stream:
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                assert '"role":"assistant"' in next(lines)
                worker.wait_for(lambda: worker.metric("kv_cache_usage_perc") > 0)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/chat/completions", json=body)
    worker.wait_until_idle()
    assert worker.metric("kv_cache_usage_perc") == 0
    assert worker.metric("generation_tokens_total") - before < 16000


def test_a_disconnect_while_waiting_leaves_the_queue():
    with running("--max-batch", "1", "--local-scheduler", "fcfs") as worker:
        body = chat("x", max_tokens=16000, stream=True)
        with worker.http.stream("POST", "/v1/chat/completions", json=body) as first:
            lines = first.iter_lines()
            next(lines)
            with httpx.Client(base_url=worker.url) as client:
                with client.stream("POST", "/v1/chat/completions", json=body):
                    # Headers came, the role did not: it waits.
                    worker.wait_for(lambda: worker.metric("num_requests_waiting") == 1)
                worker.wait_for(lambda: worker.metric("num_requests_waiting") == 0)
            assert worker.metric("num_requests_running") == 1
        worker.wait_until_idle()


def test_a_full_queue_answers_503():
    with running("--max-batch", "1", "--max-queue", "2") as worker:
        body = chat("x", max_tokens=16000, stream=True)
        with contextlib.ExitStack() as stack:
            for count in (0, 1, 2):
                client = stack.enter_context(httpx.Client(base_url=worker.url))
                stack.enter_context(client.stream("POST", "/v1/chat/completions", json=body))
                worker.wait_for(lambda: worker.metric("num_requests_running") == 1)
                worker.wait_for(lambda: worker.metric("num_requests_waiting") == count)  # noqa: B023
            response = worker.http.post("/v1/chat/completions", json=chat("one too many"))
            assert response.status_code == 503
            assert response.headers["retry-after"]
            assert response.json()["error"]["type"] == "unavailable_error"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        ("chat/completions", chat(tools=[{"type": "function"}]), 400, "tools", None),
        ("chat/completions", chat(nonsense=1), 400, "nonsense", "unknown_parameter"),
        ("chat/completions", chat(top_logprobs=1), 400, "top_logprobs", "invalid_value"),
        ("chat/completions", chat() | {"model": "gpt-9"}, 404, "model", "model_not_found"),
        ("chat/completions", chat(max_tokens=16384), 400, "messages", "context_length_exceeded"),
        (
            "completions",
            {"model": MODEL, "prompt": "x" * 16384},
            400,
            "prompt",
            "context_length_exceeded",
        ),
        ("completions", {"model": MODEL, "prompt": [5, 262]}, 400, "prompt", "invalid_value"),
        ("completions", {"model": MODEL, "prompt": [10**30]}, 400, "prompt", "invalid_value"),
        (
            "chat/completions",
            chat() | {"messages": [{"role": "wizard", "content": ""}]},
            400,
            "messages",
            "invalid_value",
        ),
    ],
)
def test_bad_requests(worker, path, body, status, param, code):
    response = worker.http.post(f"/v1/{path}", content=json.dumps(body))
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert code is None or error["code"] == code


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"null"])
def test_bodies_that_are_not_json_objects(worker, content):
    response = worker.http.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_body_that_is_too_large(worker):
    response = worker.http.post("/v1/completions", content=b" " * (16 * 2**20 + 1))
    assert response.status_code == 413


def test_the_longest_call_that_fits_a_small_cache():
    with running("--kv-tokens", "1030", "--token-budget", "100") as worker:
        assert worker.ready["kv_capacity_tokens"] == worker.ready["max_model_len"] == 1024
        body = {"model": MODEL, "prompt": list(b"abcdefgh" * 120), "temperature": 0}
        for _ in range(2):
            answer = worker.openai.completions.create(**body, max_tokens=64)
            assert answer.usage.total_tokens == 1024
        with pytest.raises(openai.BadRequestError) as caught:
            worker.openai.completions.create(**body, max_tokens=65)
        assert caught.value.code == "context_length_exceeded"
        # Without max_tokens the default is cut to what is left.
        body["prompt"] += list(b"x" * 60)
        assert worker.openai.completions.create(**body).usage.completion_tokens == 4


def test_sigterm_lets_calls_finish_and_takes_no_new_ones():
    with running() as worker:
        body = chat("x", max_tokens=400, stream=True)
        client = openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0)
        with client, client.chat.completions.create(**body) as stream:
            chunks = [next(stream)]
            worker.process.send_signal(signal.SIGTERM)
            worker.wait_for(lambda: worker.http.get("/health").status_code == 503)
            response = worker.http.post("/v1/chat/completions", json=chat("new"))
            assert response.status_code == 503
            assert "draining" in response.json()["error"]["message"]
            chunks += list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert worker.process.wait(DEADLINE_S) == 0


def test_sigterm_hands_back_what_waits():
    """Streamed or not, a caller hears at once that another worker should have the call."""
    with running("--max-batch", "1") as worker, ThreadPoolExecutor() as pool:
        body = chat("x", max_tokens=12000, stream=True, ignore_eos=True)
        with worker.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()  # kept: to drop it is to hang up
            next(lines)
            post = partial(worker.http.post, "/v1/chat/completions")
            whole = pool.submit(post, json=chat("y"))
            streamed = pool.submit(post, json=chat("z", stream=True))
            worker.wait_for(lambda: worker.metric("num_requests_waiting") == 2)
            worker.process.send_signal(signal.SIGTERM)
            assert whole.result().status_code == 503
            assert whole.result().headers["retry-after"] == "1"
            [error, done] = [line for line in streamed.result().text.splitlines() if line]
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == "unavailable"
            assert done == "data: [DONE]"
            assert worker.process.poll() is None, "the one that runs goes on"
        assert worker.process.wait(DEADLINE_S) == 0


def test_the_drain_has_a_limit():
    with running("--drain-limit", "0.2") as worker:
        body = chat("x", max_tokens=16000, stream=True)
        with worker.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            worker.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "shutting down" in json.loads(rest[-2].removeprefix("data: "))["error"]["message"]
        assert worker.process.wait(DEADLINE_S) == 0


async def test_kv_events_are_followed_through_a_restart():
    """Over TCP at free ports, which the ready line and the metrics tell, then at the same ones."""
    anywhere = "tcp://127.0.0.1:0"

    def talk(worker, texts):
        for text in texts:
            worker.openai.completions.create(model=MODEL, prompt=text, max_tokens=20)

    def flags(events, replay):
        return ("--kv-events-endpoint", events, "--kv-events-replay-endpoint", replay)

    with running("--kv-tokens", "512", *flags(anywhere, anywhere)) as worker:
        ready = worker.ready
        ends = ready["kv_events_endpoint"], ready["kv_events_replay_endpoint"]
        metrics = worker.http.get("/metrics").content
        assert kv_endpoints_of(metrics, worker.url) == KvEndpoints(*ends)
        talk(worker, ["early " * 20])
        with Following(endpoints=KvEndpoints(*ends)) as reader:
            await reader.until(lambda: reader.stats.blocks >= 7)
            await asyncio.to_thread(talk, worker, [f"{n} " * 60 for n in range(9)])
            published = worker.metric_of("fairserve:kv_events_batches_total")
            await reader.until(lambda: reader.stats.last_sequence == published - 1)
            assert (reader.stats.complete, reader.stats.gaps) == (True, 0)
            assert 0 < reader.stats.blocks <= 512 // 16
            before = reader.view.keys()
            worker.process.kill()
            worker.process.wait()
            with running(*flags(*ends)) as again:
                await asyncio.to_thread(talk, again, ["late " * 20])
                await reader.until(lambda: reader.stats.restarts and reader.stats.blocks)
                assert reader.stats.complete
                assert not before & reader.view.keys()


def test_without_flags_nothing_is_published(worker):
    assert worker.ready["kv_events_endpoint"] == worker.ready["kv_events_replay_endpoint"] == ""
    assert kv_endpoints_of(worker.http.get("/metrics").content, worker.url) is None


def test_it_does_not_outlive_its_parent():
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1],"
        " '--exit-with-parent', '--device', 'cpu']);"
        " sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert json.loads(parent.stdout.readline())["event"] == "ready"
        parent.kill()
        # The worker holds the other copy of this pipe: it closes when the worker has ended.
        assert parent.stdout.read() == ""
