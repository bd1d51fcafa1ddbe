"""A real worker process is driven by the openai client and by plain HTTP."""

import asyncio
import contextlib
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest
from kv_following import Following
from torch_worker import ANYWHERE, MODEL, shared_worker
from worker_process import DEADLINE_S, UNDER_A_SHELL, Worker, running

from fairserve.engine.wire.base import KvEndpoints
from fairserve.engine.wire.client import HttpWorkerClient, worker_session
from fairserve.engine.wire.worker_metrics import kv_endpoints_of


@pytest.fixture(scope="module")
def worker():
    return shared_worker()


@pytest.fixture(scope="module")
def restartable():
    """Return a function that starts workers which tests may end; the next test gets a new one."""
    started = {}

    def running_one(*flags):
        found = started.get(flags)
        if found is None or found.process.poll() is not None:
            if found is not None:
                found.stop()
            found = started[flags] = Worker(*flags)
        return found

    yield running_one
    for each in started.values():
        each.stop()


@pytest.fixture
def narrow(restartable):
    """Return a worker that runs one call, queues two, and lets running calls finish when stopped."""
    flags = ("--max-queue", "2", "--local-scheduler", "fcfs", "--drain-limit", "120")
    return restartable("--max-batch", "1", *flags)


@pytest.fixture
def small(restartable):
    """Return a worker with a small cache that publishes its changes, and no drain time at the end."""
    return restartable(
        *("--kv-tokens", "1030", "--token-budget", "100", "--drain-limit", "0.05"),
        *("--kv-events-endpoint", ANYWHERE, "--kv-events-replay-endpoint", ANYWHERE),
    )


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


def test_streamed_and_whole_chats_are_equal(worker):
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


def test_completions_of_text_and_token_ids_are_equal(worker):
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


def test_the_tokenize_endpoint_agrees_with_calls(worker):
    """The counts equal those of the gateway's client."""

    async def ask(*bodies):
        async with worker_session() as session:
            client = HttpWorkerClient(worker.url, session)
            assert (await client.facts()).tokenizes
            return [len(await client.tokenize(body)) for body in bodies]

    system = {"role": "system", "content": "be brief"}
    messages = [system, {"role": "user", "content": "tokenise this"}]
    whole, alone, text = asyncio.run(
        ask(
            {"model": MODEL, "messages": messages},
            {"messages": [system], "add_generation_prompt": False},
            {"model": MODEL, "prompt": "tokenise this"},
        )
    )
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    used = worker.http.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    assert whole == used
    assert alone == 1 + len("be brief") + 1
    assert text == len("tokenise this")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "other", "prompt": "x"}, 404, "model"),
        ({}, 400, "messages"),
        ({"prompt": "x", "messages": []}, 400, "messages"),
        ({"prompt": [1]}, 400, "prompt"),
        ({"messages": [{"role": "pirate", "content": "arr"}]}, 400, "messages"),
        ({"prompt": "x", "add_special_tokens": 1}, 400, "add_special_tokens"),
        ({"prompt": "x", "return_token_strs": True}, 400, "return_token_strs"),
    ],
)
def test_invalid_prompts_are_not_tokenised(worker, body, status, param):
    answer = worker.http.post("/tokenize", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_call_may_have_several_samples(worker):
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


def test_usage_is_reported_continuously_with_cached_tokens(worker):
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


def test_stop_strings_end_the_output(worker):
    body = chat(max_tokens=40, seed=9)
    text = worker.openai.chat.completions.create(**body).choices[0].message.content
    stop = text[10:13]
    cut = worker.openai.chat.completions.create(**body, stop=["never so", stop]).choices[0]
    assert cut.message.content == text[: text.index(stop)]
    assert cut.finish_reason == "stop"


def test_concurrent_calls_have_the_output_of_single_ones(worker):
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
    body = chat("bye", max_tokens=16000, stream=stream, ignore_eos=True)
    with worker.asking("/v1/chat/completions", body):
        worker.wait_for(lambda: worker.metric("kv_cache_usage_perc") > 0)
    worker.wait_until_idle()
    assert worker.metric("kv_cache_usage_perc") == 0
    assert worker.metric("generation_tokens_total") - before < 16000


LONG = chat("x", max_tokens=16000, stream=True, ignore_eos=True)


def test_a_disconnect_while_waiting_leaves_the_queue(narrow):
    with narrow.asking("/v1/chat/completions", LONG):
        narrow.wait_for(lambda: narrow.metric("num_requests_running") == 1)
        with narrow.asking("/v1/chat/completions", LONG):
            narrow.wait_for(lambda: narrow.metric("num_requests_waiting") == 1)
        narrow.wait_for(lambda: narrow.metric("num_requests_waiting") == 0)
        assert narrow.metric("num_requests_running") == 1
    narrow.wait_until_idle()


def test_the_header_of_a_whole_answer_is_the_start_of_a_named_call(narrow):
    """The platform names its calls; others get the status of their answer."""

    def asked(content, **more):
        named = {"vllm_xargs": {"client_id": "a", "call_id": content, "weight": 1.0}}
        return {"json": chat(content, ignore_eos=True, **named, **more)}

    path = "/v1/chat/completions"
    with narrow.http.stream("POST", path, **asked("first", max_tokens=4000)) as first:
        assert first.status_code == 200
        narrow.wait_for(lambda: narrow.metric("num_requests_running") == 1)
        assert "content-length" not in first.headers
        with ThreadPoolExecutor() as pool:
            second = pool.submit(narrow.http.post, path, **asked("second", max_tokens=5))
            narrow.wait_for(lambda: narrow.metric("num_requests_waiting") == 1)
            assert not second.done()
            first.close()
            answer = second.result().json()
    assert answer["id"] == "chatcmpl-second"
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["finish_reason"] == "length"
    narrow.wait_until_idle()


def test_without_flags_no_kv_events_are_published(narrow):
    assert narrow.ready["kv_events_endpoint"] == narrow.ready["kv_events_replay_endpoint"] == ""
    assert kv_endpoints_of(narrow.http.get("/metrics").content, narrow.url) is None


def test_a_full_queue_answers_503(narrow):
    with contextlib.ExitStack() as stack:
        for count in (0, 1, 2):
            stack.enter_context(narrow.asking("/v1/chat/completions", LONG))
            narrow.wait_for(lambda: narrow.metric("num_requests_running") == 1)
            narrow.wait_for(lambda: narrow.metric("num_requests_waiting") == count)  # noqa: B023
        response = narrow.http.post("/v1/chat/completions", json=chat("one too many"))
        assert response.status_code == 503
        assert response.headers["retry-after"]
        assert response.json()["error"]["type"] == "unavailable_error"
    narrow.wait_until_idle()


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
def test_bad_requests_are_rejected(worker, path, body, status, param, code):
    response = worker.http.post(f"/v1/{path}", content=json.dumps(body))
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert code is None or error["code"] == code


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"null"])
def test_bodies_that_are_not_json_objects_are_rejected(worker, content):
    response = worker.http.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_body_that_is_too_large_is_rejected(worker):
    response = worker.http.post("/v1/completions", content=b" " * (16 * 2**20 + 1))
    assert response.status_code == 413


def test_the_longest_call_that_fits_a_small_cache_is_served(small):
    assert small.ready["kv_capacity_tokens"] == small.ready["max_model_len"] == 1024
    body = {"model": MODEL, "prompt": list(b"abcdefgh" * 120), "temperature": 0}
    for _ in range(2):
        answer = small.openai.completions.create(**body, max_tokens=64)
        assert answer.usage.total_tokens == 1024
    with pytest.raises(openai.BadRequestError) as caught:
        small.openai.completions.create(**body, max_tokens=65)
    assert caught.value.code == "context_length_exceeded"
    # Without max_tokens the default is the remaining length.
    body["prompt"] += list(b"x" * 60)
    assert small.openai.completions.create(**body).usage.completion_tokens == 4


def test_sigterm_finishes_running_calls_and_rejects_waiting_ones(narrow):
    """Callers learn immediately that another worker has to serve the call, streamed or not."""
    post = partial(narrow.http.post, "/v1/chat/completions")
    body = chat("x", max_tokens=1000, stream=True, ignore_eos=True)
    with ThreadPoolExecutor() as pool, narrow.asking("/v1/chat/completions", body) as runs:
        narrow.wait_for(lambda: narrow.metric("num_requests_running") == 1)
        whole = pool.submit(post, json=chat("y"))
        streamed = pool.submit(post, json=chat("z", stream=True))
        narrow.wait_for(lambda: narrow.metric("num_requests_waiting") == 2)
        narrow.process.send_signal(signal.SIGTERM)
        assert whole.result().status_code == 503
        assert whole.result().headers["retry-after"] == "1"
        [error, done] = [line for line in streamed.result().text.splitlines() if line]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "unavailable"
        assert done == "data: [DONE]"
        assert narrow.process.poll() is None, "the one that runs goes on"
        assert narrow.http.get("/health").status_code == 503
        late = post(json=chat("new"))
        assert (late.status_code, "draining" in late.text) == (503, True)
        *_, last, done = data_lines(runs.getresponse().read().decode())
        assert (json.loads(last)["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
    assert narrow.process.wait(DEADLINE_S) == 0


def data_lines(text):
    return [line.removeprefix("data: ") for line in text.splitlines() if line]


async def test_kv_events_survive_a_restart_and_the_drain_is_bounded(small):
    """Events use TCP at free ports, named by the ready line and the metrics; the restart reuses them."""

    def talk(worker, texts):
        for text in texts:
            worker.openai.completions.create(model=MODEL, prompt=text, max_tokens=20)

    def cut_off():
        body = chat("x", max_tokens=900, stream=True, ignore_eos=True)
        with small.asking("/v1/chat/completions", body) as runs:
            small.wait_for(lambda: small.metric("num_requests_running") == 1)
            small.process.send_signal(signal.SIGTERM)
            *_, last, done = data_lines(runs.getresponse().read().decode())
        assert ("shutting down" in json.loads(last)["error"]["message"], done) == (True, "[DONE]")
        assert small.process.wait(DEADLINE_S) == 0

    ends = small.ready["kv_events_endpoint"], small.ready["kv_events_replay_endpoint"]
    metrics = small.http.get("/metrics").content
    assert kv_endpoints_of(metrics, small.url) == KvEndpoints(*ends)
    talk(small, ["early " * 20])
    with Following(endpoints=KvEndpoints(*ends)) as reader:
        await reader.until(lambda: reader.stats.blocks >= 7)
        await asyncio.to_thread(talk, small, [f"{n} " * 120 for n in range(9)])
        published = small.metric_of("fairserve:kv_events_batches_total")
        await reader.until(lambda: reader.stats.last_sequence == published - 1)
        assert (reader.stats.complete, reader.stats.gaps) == (True, 0)
        assert 0 < reader.stats.blocks <= 1024 // 16
        before = reader.view.keys()
        await asyncio.to_thread(cut_off)
        flags = ("--kv-events-endpoint", ends[0], "--kv-events-replay-endpoint", ends[1])
        with running(*flags, prefix=UNDER_A_SHELL) as again:
            await asyncio.to_thread(talk, again, ["late " * 20])
            await reader.until(lambda: reader.stats.blocks and not before & reader.view.keys())
            assert reader.stats.complete
            again.process.kill()  # the shell that started it
            assert again.process.stdout.read() == "", "a worker does not outlive its parent"
