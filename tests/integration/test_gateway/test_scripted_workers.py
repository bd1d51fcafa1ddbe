"""The gateway handles misbehaving and busy workers: scripted workers behind a whole server."""

import concurrent.futures
import contextlib
import json

import pytest
from processes import eventually
from sse import data_of

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway(start_server, scripted):
    return start_server("--worker-urls", urls(scripted), "--keepalive-s", "0.05")


@pytest.fixture(scope="module")
def impatient(start_server, scripted):
    """Yield a second server in front of the same workers, with a short queue time-out."""
    return start_server(
        *("--worker-urls", urls(scripted)),
        *("--keepalive-s", "0.05", "--max-queue-wait-s", "0.2"),
    )


def urls(scripted):
    return ",".join(worker.url for worker in scripted)


def body(text, **more):
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 20,
        **more,
    }


def call(gateway, text, run=None, key=None, **more):
    headers = {"X-Interaction-Id": run} if run else {}
    return gateway.post(PATH, body(text, **more), key, headers=headers)


def sent(scripted):
    return [each for worker in scripted for each in worker.bodies]


def test_the_worker_gets_the_call_unchanged(gateway, scripted):
    own = {"user": "ann", "metadata": {"interaction_id": "run-own"}}
    extra = {"tools": [{"type": "function", "function": {"name": "f"}}], "top_k": 7, **own}
    assert call(gateway, "ok as it came", **extra).status_code == 200
    (got,) = [each for each in sent(scripted) if "as it came" in str(each["messages"])]
    assert (got["tools"], got["top_k"], got["max_tokens"]) == (extra["tools"], 7, 20)
    assert (got["stream"], "stream_options" in got) == (False, False), (
        "it is not streamed here, either"
    )
    added = got["vllm_xargs"]
    assert set(added) == {"client_id", "call_id", "weight", "expected_output_tokens"}
    assert added["client_id"].endswith("/ann")
    assert 0 < added["expected_output_tokens"] <= 20
    assert got["cache_salt"].startswith("tn_")
    assert not {"user", "metadata"} & set(got)


def test_the_cluster_page_shows_the_reports_of_each_worker(gateway):
    def reported():
        workers = gateway.cluster()["workers"]
        return all(worker["reported"] for worker in workers) and workers

    for worker in eventually(reported):
        assert (worker["state"], worker["reason"], worker["kind"]) == ("ready", "", "vllm")
        assert (worker["model"], worker["context_tokens"]) == ("scripted", 4096)
        assert worker["circuit"]["state"] == "closed"
        assert worker["reported"]["block_tokens"] == 16
        assert (worker["version"], worker["foreign_tokens"]) == (None, 0)
        assert (worker["cache_view"], worker["local_queue"]) == ("router", None)
        assert worker["kv_capacity_tokens"] == 1024


def test_chunks_are_merged_for_an_unstreamed_call(gateway):
    answer = call(gateway, "ok").json()
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "one two three"}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_a_rejection_by_the_worker_is_passed_on(gateway):
    answer = call(gateway, "refuse", run="run-refused-by-worker")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools")
    assert error["code"] == "unsupported_parameter"
    row = gateway.row(interaction_id="run-refused-by-worker")
    assert (row["outcome"], row["wasted"]) == ("failed", 0)


@pytest.mark.parametrize("trouble", ["die", "busy"])
def test_a_call_that_no_worker_starts_fails_after_its_attempts(gateway, scripted, trouble):
    before = len(sent(scripted))
    answer = call(gateway, trouble, run=f"run-{trouble}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]
    assert 2 <= len(sent(scripted)) - before <= 3
    row = gateway.row(interaction_id=f"run-{trouble}")
    assert (row["outcome"], row["input_tokens"], row["wasted"]) == ("failed", 0, 0)


@pytest.mark.parametrize("trouble", ["break", "error"])
def test_a_worker_that_breaks_off_ends_the_stream_with_an_error(gateway, scripted, trouble):
    before = len(sent(scripted))
    runs = f"run-{trouble}-1", f"run-{trouble}-2"
    streamed = data_of(call(gateway, trouble, run=runs[0], stream=True).text)
    text = [json.loads(event)["choices"][0]["delta"].get("content") for event in streamed[:-1]]
    assert "".join(filter(None, text)) == "one two "
    assert json.loads(streamed[-1])["error"]["code"] == "worker_failed"
    whole = call(gateway, trouble, run=runs[1])
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "worker_failed")
    assert len(sent(scripted)) - before == 2, "an answer that has begun is not tried again"
    row = gateway.row(interaction_id=runs[0])
    assert (row["outcome"], row["output_tokens"], row["wasted"]) == ("failed", 2, 1)
    assert (row["cached_tokens"], row["extend_tokens"], row["estimated"]) == (4, 8, 0)
    row = gateway.row(interaction_id=runs[1])
    assert (row["outcome"], row["cost"], row["wasted"], row["estimated"]) == ("failed", 0, 1, 1)
    assert 0 < row["output_tokens"] <= 20, "the worker has reported none"


def test_keep_alive_comments_until_the_first_token(gateway, scripted):
    """The headers are sent with the first comment, so later values are missing in them."""
    with gateway.http.stream(
        "POST",
        PATH,
        json=body("hold until alive", stream=True),
        headers={"Authorization": f"Bearer {gateway.app_key}", "X-Interaction-Id": "run-hold"},
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith(":")
        assert answer.headers["x-interaction-id"] == "run-hold"
        begun(scripted, "until alive")
        for worker in scripted:
            worker.release()
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"


def release_all(scripted, futures):
    def done():
        for worker in scripted:
            worker.release()
        return all(future.done() for future in futures)

    eventually(done)


@contextlib.contextmanager
def full(server, scripted):
    """Hold a call that has not begun on both workers, so that they admit no more."""
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        held = [threads.submit(call, server, "stall " + "x" * 400) for _ in range(2)]
        eventually(lambda: server.cluster()["running_calls"] == 2)
        yield
        release_all(scripted, held)
    assert [each.result().status_code for each in held] == [200, 200]


def test_a_call_that_waits_too_long_gets_503_and_a_row(impatient, scripted):
    with full(impatient, scripted):
        answer = call(impatient, "ok", run="run-waited")
        streamed = call(impatient, "ok", run="run-waited-streaming", stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.headers["retry-after"]
    assert streamed.status_code == 200, "its headers had gone out with a keep-alive comment"
    assert streamed.text.startswith(":")
    (last,) = data_of(streamed.text)
    assert json.loads(last)["error"]["code"] == "queue_timeout"
    for run in ("run-waited", "run-waited-streaming"):
        row = impatient.row(interaction_id=run)
        assert (row["outcome"], row["input_tokens"], row["worker"]) == ("expired", 0, None)


def test_a_disconnect_in_the_queue_is_recorded(gateway, scripted):
    with full(gateway, scripted):
        with gateway.asking(PATH, body("ok"), **{"X-Interaction-Id": "run-left-queue"}):
            eventually(lambda: gateway.cluster()["queued_calls"] == 1)
        row = gateway.row(interaction_id="run-left-queue")
        assert (row["outcome"], row["input_tokens"], row["worker"]) == ("cancelled", 0, None)
        assert gateway.cluster()["queued_calls"] == 0


def test_a_flood_is_rejected_under_overload_and_a_run_in_progress_completes(gateway, scripted):
    key = gateway.new_key("flooded", user_rpm=3)
    big = "x" * 3400  # 850 tokens of the 2,048 that each worker holds
    first = call(gateway, "ok", run="run-under-way", key=key)
    assert (first.status_code, first.headers["x-ratelimit-remaining-requests"]) == (200, "2")
    with concurrent.futures.ThreadPoolExecutor(10) as threads:
        flood = [
            threads.submit(call, gateway, f"stall {n} {big}", run=f"run-flood-{n}", key=key)
            for n in range(8)
        ]
        eventually(lambda: gateway.cluster()["overloaded"])
        rejected = eventually(lambda: [f for f in flood if f.done()])
        late = [call(gateway, "ok", run=f"run-late-{n}", key=key) for n in range(9)]
        second = threads.submit(call, gateway, "ok", run="run-under-way", key=key)
        release_all(scripted, [*flood, second])
    assert second.result().status_code == 200, "a run in progress is never rejected"
    for each in rejected:
        answer = each.result()
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert "the limit is 3" in answer.json()["error"]["message"]
    counts = [answer.json()["error"]["fairserve"]["count"] for answer in late]
    assert counts == sorted(set(counts)), "each call is one more"
    assert counts[-1] >= 1 + 9, "however far over the limit"
    path = "/v1/throttling/events?interaction_id=run-late-8"
    (event,) = eventually(lambda: gateway.request("GET", path, key).json()["items"])
    assert (event["reason"], event["mid_run"]) == ("overloaded_user_limit", False)
    assert event["count"] == counts[-1]
    codes = [each.result().status_code for each in flood]
    assert codes.count(429) >= 1
    assert set(codes) <= {200, 429, 503}
    for number, code in enumerate(codes):
        outcome = gateway.row(interaction_id=f"run-flood-{number}")["outcome"]
        assert outcome == {200: "completed", 429: "refused", 503: "expired"}[code]


def test_a_disconnect_cancels_the_call_on_the_worker(gateway, scripted):
    before = sum(worker.disconnects for worker in scripted)
    for stream in (True, False):
        run = f"run-left-{stream}"
        asked = body(f"hold and leave {run}", stream=stream)
        with gateway.asking(PATH, asked, **{"X-Interaction-Id": run}):
            begun(scripted, f"and leave {run}")
            call(gateway, "ok")  # by its answer the server has read the preceding chunk
        row = gateway.row(interaction_id=run)
        assert (row["outcome"], row["estimated"]) == ("cancelled", not stream)
        if stream:
            assert (row["input_tokens"], row["output_tokens"]) == (12, 0)
        else:
            assert 0 < row["output_tokens"] <= 20, "the worker has reported none"
    eventually(lambda: sum(worker.disconnects for worker in scripted) == before + 2)


def begun(scripted, message):
    """Wait until the worker that holds the call has sent its first chunk."""
    eventually(lambda: any(message in worker.holding for worker in scripted), "no worker has it")


@pytest.mark.parametrize(("word", "charged"), [("hold", 1), ("stall", 0)])
def test_an_attempt_is_waived_only_if_no_worker_has_begun_it(gateway, scripted, word, charged):
    asked = body(f"{word} and retry")

    def headers(number):
        run = f"run-{word}-retry-{number}"
        return {"X-Interaction-Id": run, "x-stainless-retry-count": str(number)}

    with gateway.asking(PATH, asked, **headers(0)):
        if word == "hold":
            begun(scripted, "and retry")
        else:
            (worker,) = eventually(lambda: [each for each in scripted if each.waiting])
            scraped = worker.scrapes
            eventually(lambda: worker.scrapes >= scraped + 4, "nobody reads that it waits")
    first = {"interaction_id": f"run-{word}-retry-0"}
    assert gateway.row(**first)["outcome"] == "cancelled"
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        second = threads.submit(gateway.post, PATH, asked, headers=headers(1))
        release_all(scripted, [second])
    assert second.result().status_code == 200
    assert gateway.row(interaction_id=f"run-{word}-retry-1")["charged"] == 1
    eventually(lambda: gateway.rows(**first)[0]["charged"] == charged)
    assert len(gateway.rows(**first)) == 1
