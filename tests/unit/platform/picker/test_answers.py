"""Test the order of reports and bytes at the end of an answer, with a scripted placement."""

import json
from types import SimpleNamespace

import pytest
from scripted_gateway import events, sse, whole

from fairserve.engine.wire.base import WorkerRequest, WorkerUnavailableError
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.reported_usage import UsageBounds
from fairserve.engine.wire.watched_client import WatchedClient
from fairserve.platform.base.errors import WorkerFailedError
from fairserve.platform.picker.answers import FailedAnswer, StreamedAnswer, WholeAnswer
from fairserve.platform.picker.gateway_call import GatewayCall
from fairserve.platform.picker.sent_call import SentCall
from fairserve.platform.serving.completions.openai_endpoint import OpenAIWriter
from fairserve.platform.serving.completions.requests import CHAT, CompletionCall
from fairserve.platform.serving.decision.rejection import Rejection


class Placement:
    """Keeps the reports."""

    stopped = None

    def __init__(self):
        self.grant = SimpleNamespace(worker_id="w", lease_s=60.0)
        self.reports = []

    def progress(self, usage, *, started, cached_tokens_reported):
        self.reports.append(("progress", started, usage.output_tokens))
        return True

    async def end(self, outcome, used, **more):
        self.reports.append((outcome, used.usage.output_tokens))

    async def recorded(self):
        self.reports.append("recorded")

    async def failed(self, failure, used, *, last):
        self.reports.append(("failed", failure.cause, last))
        return Rejection(WorkerFailedError("it failed"))


class Circuit:
    generation = 1


class Watched(WatchedClient):
    """The counts of a worker, which notes what its circuit learns."""

    def __init__(self):
        super().__init__(None, Circuit(), lambda: 0.0, lambda: None)
        self.events = []

    def began(self, generation):
        self.events.append("began")

    def failed(self, generation, error, tenant):
        self.events.append(("failed", error.cause))


@pytest.fixture
def placement():
    return Placement()


def made(placement, *, stream=True):
    core = SimpleNamespace(prompt_tokens=12, system_tokens=0, pool="m", max_output_tokens=9)
    checked = SimpleNamespace(call=core, call_id="c", answer_name="public", conversation=None)
    checked.usage_bounds = UsageBounds(100, 9)
    call = CompletionCall(CHAT, checked, {}, stream)
    member = SimpleNamespace(worker_id="w", queue=None, circuit=Circuit(), watched=Watched())
    sent = SentCall(member, WorkerRequest(CHAT, {}, "c", "t/u", stream=stream), None)
    return GatewayCall(call, OpenAIWriter(call), placement, sent, 0.0)


async def test_the_end_of_a_stream_is_recorded_before_it_is_returned(placement):
    call = made(placement)
    answer = StreamedAnswer(call)
    raw = sse("a", "b")
    body = b""
    for place in range(len(raw)):
        body += await answer.feed(raw[place : place + 1], end=False)
        assert (b"[DONE]" in body) == ("recorded" in placement.reports)
    assert events(body)[-1] == "[DONE]"
    assert placement.reports[-2:] == [("completed", 2), "recorded"]
    assert await answer.feed(b"data: more\n\n", end=True) == b""
    assert placement.reports[-1] == "recorded", "nothing is reported after the end"


async def test_progress_is_reported_with_each_chunk(placement):
    call = made(placement)
    answer = StreamedAnswer(call)
    for text in ("a", "b", "c"):
        await answer.feed(sse(text, tokens=1, finish=False, done=False), end=False)
    assert [each[0] for each in placement.reports] == ["progress"] * 3
    assert call.sent.member.watched.events == ["began"]
    assert call.sent.member.watched.sequences == 1
    await answer.feed(b"", end=True)
    assert placement.reports[-1] == ("failed", "silent", True)
    assert call.sent.member.watched.sequences == 0


async def test_a_whole_answer_is_recorded_before_it_is_returned(placement):
    call = made(placement, stream=False)
    call.sent.member.http = HttpWorkerClient("http://127.0.0.1:1", None)
    call.was_sent()
    assert placement.reports == [], "its start is learned from the worker's metrics"
    call.sent.member.watched.unstarted.read(waiting=0, sent_until_s=1.0)
    assert placement.reports == [("progress", True, 0)]
    call.answering()
    assert placement.reports == [("progress", True, 0)], "it starts once"
    answer = WholeAnswer(call)
    raw = whole("hello")
    assert await answer.feed(raw[:50], end=False) == b""
    body = json.loads(await answer.feed(raw[50:], end=True))
    assert (body["id"], body["model"]) == ("chatcmpl-c", "public")
    assert placement.reports[-2:] == [("completed", 3), "recorded"]


async def test_an_answer_that_runs_on_is_cut(placement):
    answer = StreamedAnswer(made(placement))
    raw = sse(*["word "] * 200, tokens=1, finish=False, done=False)
    body = await answer.feed(raw, end=False)
    assert events(body)[-1]["error"]["code"] == "worker_failed"
    assert b"[DONE]" not in body
    assert placement.reports[-1] == ("failed", "failed", True)
    whole_answer = WholeAnswer(made(placement, stream=False))
    error = json.loads(await whole_answer.feed(whole("x" * 20_000), end=True))
    assert error["error"]["code"] == "worker_failed"
    assert placement.reports[-1] == ("failed", "failed", True)


async def test_a_failed_answer_counts_against_the_worker(placement):
    call = made(placement)
    error = SimpleNamespace(cause="failed")

    def error_of_answer(status, headers, body):
        assert (status, body) == (500, b'{"error": "x"}')
        return WorkerUnavailableError("boom", cause=error.cause, status=status)

    call.sent.member.http = SimpleNamespace(error_of_answer=error_of_answer)
    answer = FailedAnswer(call, 500, {"content-type": "application/json"})
    assert await answer.feed(b'{"error"', end=False) == b""
    body = json.loads(await answer.feed(b': "x"}', end=True))
    assert body["error"]["code"] == "worker_failed"
    assert call.sent.member.watched.events == [("failed", "failed")]
    assert placement.reports == [("failed", "failed", True)]
