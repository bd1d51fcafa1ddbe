"""Calls that Envoy carries, phase by phase, over a scripted Envoy, control and worker."""

import asyncio
import json

import pytest
from scripted_envoy import (
    CHAT,
    HELLO,
    MAX_BODY_BYTES,
    USAGE,
    Control,
    envoy_world,
    error_of,
    set_headers,
)
from starlette.applications import Starlette
from starlette.testclient import TestClient
from until import until

from fairserve.engine.wire.base import WorkerChunk, WorkerRejectedError
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.messages import Cancel
from fairserve.platform.envoy import decisions, open_calls
from fairserve.platform.envoy.behind_envoy import Takeovers, envoys_client
from fairserve.platform.envoy.open_calls import CallReport
from fairserve.platform.serving.completions.usage import AnswerTotals
from fairserve.throttling.base import Decision

REJECTED = Decision(False, "overloaded_user_limit", "user", 3, 60.0, 4, retry_after_s=11.2)


def ended(control):
    (release,) = control.releases
    return release.outcome, release.usage.output_tokens, release.error


# --- the request ----------------------------------------------------------------------------------


async def test_a_call_is_sent_to_the_worker_that_control_grants(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request(x_interaction_id="r", x_api_key="app", accept_encoding="gzip")
        headers, removed, body = await request.placed()
        assert headers["x-gateway-destination-endpoint"] == "127.0.0.1:8001"
        assert headers["authorization"] == "Bearer worker-token"
        assert headers["x-request-id"] == request.record
        assert headers["content-length"] == str(len(json.dumps(body, separators=(",", ":"))))
        # Nothing of the client reaches a worker but its call.
        assert {"cookie", "x-api-key", "accept-encoding", "x-forwarded-for"} <= set(removed)
        assert (body["model"], body["stream"]) == ("worker-m", True)
        assert body["stream_options"]["continuous_usage_stats"]
        assert body["vllm_xargs"]["call_id"] == request.record
        known = request.metadata["fairserve.call"]
        assert known["id"] == f"chatcmpl-{request.record}"
        assert (known["model"], known["stream"], known["include_usage"]) == ("m", True, False)
        assert not world.control.reports, "it has not started"


async def test_an_answer_of_envoy_itself_stays_as_it_is(tmp_path):
    """Envoy sends no head of the request before: it has rejected an upgrade of the connection."""
    async with envoy_world(Control(), tmp_path) as world:
        request = world.request()
        answer = await request.answering(**{"-status": "400"})
        assert answer.WhichOneof("response") == "response_headers"
        assert not answer.response_headers.HasField("response")
        assert not isinstance(await request.answer(), type(answer)), "the stream has ended"


async def test_a_worker_without_a_token_does_not_get_that_of_the_client(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        world.worker.http.authorize("")
        headers, removed, _ = await world.request().placed()
        assert "authorization" in removed
        assert "authorization" not in headers


async def test_the_start_of_a_call_that_is_not_streamed_is_learned_from_its_worker(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request({**HELLO, "stream": False})
        _, _, body = await request.placed()
        assert body["stream"] is False
        assert "stream_options" not in body
        assert not world.control.reports
        world.carried[0].request.on_started()
        (report,) = world.control.reports
        assert (report.started, report.usage.prompt_tokens) == (True, 4)


async def test_a_stream_starts_with_its_first_event_and_not_with_its_header(tmp_path):
    """vLLM sends the header when it accepts a call, which may then wait in its queue."""
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        assert not world.control.reports
        await world.progress(request.record, started=True, chunks=1, output_bytes=3)
        await until(lambda: world.control.reports)
        assert world.control.reports[0].started
        assert world.control.reports[0].queue_s > 0


async def test_a_stream_that_is_over_before_its_start_was_seen_has_started(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await world.end(request.record, started=True, complete=True, **USAGE)
        await until(lambda: world.control.releases)
        (report,) = world.control.reports
        assert (report.started, report.usage.output_tokens) == (True, 0)


async def test_an_embedding_starts_when_it_is_sent(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request({"model": "m", "input": "a text"}, path="/v1/embeddings")
        await request.placed()
        assert request.metadata["fairserve.call"]["id"].startswith("embd-")
        (report,) = await until(lambda: world.control.reports)
        assert (report.started, report.usage.prompt_tokens) == (True, 4)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        ({"authorization": ""}, 401, "invalid_api_key"),
        ({"content_length": str(MAX_BODY_BYTES + 1)}, 413, "body_too_large"),
    ],
    ids=["wrong key", "no key", "large body"],
)
async def test_a_request_is_rejected_before_its_body(tmp_path, headers, status, code):
    control = Control()
    async with envoy_world(control, tmp_path) as world:
        request = world.request(**headers)
        found, own, error = error_of(await request.head())
        assert (found, error["code"]) == (status, code)
        assert own["content-type"] == "application/json"
        assert own["x-request-id"].startswith("req_")
        assert await request.answer() == await request.answer(), "the stream has ended"
        assert not control.submitted
        assert [each.status for each in world.answered] == [status]


async def test_a_draining_server_rejects_new_calls(tmp_path):
    async with envoy_world(Control(), tmp_path) as world:
        world.draining.set()
        status, headers, error = error_of(await world.request().head())
        assert (status, error["code"], headers["retry-after"]) == (503, "draining", "5")


async def test_a_body_beyond_its_limit_is_rejected_though_its_size_was_not_declared(tmp_path):
    async with envoy_world(Control(), tmp_path) as world:
        body = json.dumps({**HELLO, "user": "x" * MAX_BODY_BYTES}).encode()
        request = world.request(body)
        del request.headers["content-length"]
        status, _, error = error_of(await request.decided())
        assert (status, error["code"]) == (413, "body_too_large")


async def test_a_request_without_a_body_is_not_json(tmp_path):
    async with envoy_world(Control(), tmp_path) as world:
        status, _, error = error_of(await world.request(b"").head(end_of_stream=True))
        assert (status, error["code"]) == (400, "malformed_json")


async def test_memory_for_bodies_is_returned_with_the_request(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request()
        await request.placed()
        assert world.parts.bodies.used_bytes == len(request.raw)
        await request.close()
        await until(lambda: not world.parts.bodies.used_bytes)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [(b"{", 400, None), ({**HELLO, "model": "x"}, 404, "model"), ({**HELLO, "n": 0}, 400, "n")],
    ids=["no JSON", "unknown model", "value"],
)
async def test_a_wrong_request_is_rejected(tmp_path, body, status, param):
    async with envoy_world(Control(), tmp_path) as world:
        found, _, error = error_of(await world.request(body).decided())
        assert (found, error["param"]) == (status, param)


async def test_a_rejection_by_control_has_the_headers_of_its_call(tmp_path):
    async with envoy_world(Control(REJECTED), tmp_path) as world:
        answer = await world.request(x_interaction_id="r").decided()
        status, headers, error = error_of(answer)
        assert (status, headers["retry-after"]) == (429, "12")
        assert headers["x-interaction-id"] == "r"
        assert headers["x-fairserve-refusal"] == "overloaded_user_limit"
        assert error["fairserve"]["scope"] == "user"
        (answered,) = world.answered
        assert (answered.status, answered.path) == (429, CHAT)
        assert answered.facts.fields["reason"] == "overloaded_user_limit"
        assert answered.facts.client == "192.0.2.7"
        assert not len(world.calls)


async def test_a_full_queue_is_a_503(tmp_path):
    async with envoy_world(Control(UnavailableError("the queue is full")), tmp_path) as world:
        assert error_of(await world.request().decided())[0] == 503


async def test_pages_of_the_apps_origin_may_read_answers(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        known = {"authorization": "Bearer pages", "origin": "https://a.example"}
        request = world.request(**known)
        await request.placed()
        answer = await request.answering()
        headers = set_headers(answer.response_headers.response.header_mutation)
        assert headers["access-control-allow-origin"] == "https://a.example"
        assert "x-fairserve-worker" in headers["access-control-expose-headers"]
        other = world.request(**{**known, "origin": "https://b.example"}, content_length="9" * 9)
        _, headers, _ = error_of(await other.head())
        assert headers["vary"] == "Origin"
        assert "access-control-allow-origin" not in headers


# --- the wait -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "half closed"])
async def test_a_client_that_leaves_the_queue_withdraws_its_call(tmp_path, reset):
    control = Control("w0")
    control.hold.clear()
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.head()
        await request.send_body()
        await until(lambda: control.submitted)
        if reset:
            request.stream.cancel()
        else:
            await request.close()
        await until(lambda: control.withdrawn)
        assert not len(world.calls)


# --- the answer -----------------------------------------------------------------------------------


async def test_the_answer_has_the_headers_of_its_call_and_none_of_the_worker(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request()
        await request.placed()
        answer = await request.answering(x_private="10.0.0.7")
        change = answer.response_headers.response.header_mutation
        headers = set_headers(change)
        assert headers["x-fairserve-worker"] == "w0"
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["x-accel-buffering"] == "no"
        assert int(headers["x-fairserve-queue-ms"]) >= 0
        assert {"server", "x-private"} <= set(change.remove_headers)
        assert world.carried[0].notes == ["began"]


async def test_progress_and_end_are_those_of_the_log(tmp_path):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await world.progress(request.record, started=True, **{**USAGE, "output_tokens": 1})
        await until(lambda: control.reports and control.reports[-1].usage.output_tokens == 1)
        await world.end(request.record, started=True, complete=True, **USAGE)
        await until(lambda: control.releases)
        (release,) = control.releases
        assert release.outcome == "completed"
        assert (release.usage.prompt_tokens, release.usage.output_tokens) == (12, 3)
        assert (release.usage.cached_tokens, release.ttft_s) == (4, None)
        assert world.carried[0].notes[-1] == "end"
        assert [each.status for each in world.answered] == [200]
        assert world.answered[0].facts.fields["output_tokens"] == 3
        # The stream ends after its call; nothing is reported twice.
        await request.close()
        await world.end(request.record, started=True, **USAGE)
        assert await request.answer() == await request.answer()
        assert len(control.releases) == 1


async def test_a_worker_that_reports_no_usage_is_counted_by_its_output(tmp_path):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await world.end(request.record, started=True, complete=True, chunks=3, output_bytes=40)
        await until(lambda: control.releases)
        assert ended(control) == ("completed", 10, "")
        assert control.releases[0].usage.prompt_tokens == 4


async def test_the_first_output_has_a_time(tmp_path):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        call = world.calls.get(request.record)
        first_ms = (call._submission.wall_s + 0.25) * 1000
        await request.answering()
        await world.end(
            request.record, started=True, complete=True, first_output_ms=first_ms, **USAGE
        )
        await until(lambda: control.releases)
        assert control.releases[0].ttft_s == pytest.approx(0.25)


LEFT = {"flags": ("downstream_connection_termination",)}


async def test_the_next_call_of_a_client_waits_for_the_report_of_its_last_one(tmp_path):
    """A client gets its answer some milliseconds before the log reports the end."""
    control = Control("w0", "w0", "w0")
    async with envoy_world(control, tmp_path) as world:
        first = world.request()
        await first.placed()
        await first.answering()
        await first.close()
        record = first.record
        await until(lambda: world.calls.get(record)._calls._unreported)
        follower, other = world.request(), world.request({**HELLO, "user": "bob"})
        following = asyncio.ensure_future(follower.placed())
        await other.placed()
        assert len(control.submitted) == 2, "the call of another user does not wait"
        assert not following.done()
        await world.end(record, started=True, complete=True, **USAGE)
        await following
        assert [each.outcome for each in control.releases] == ["completed"]
        assert len(control.submitted) == 3


@pytest.mark.parametrize(
    ("end", "outcome", "error"),
    [
        (LEFT, "cancelled", "client disconnected"),
        ({"flags": ("downstream_remote_reset",)}, "cancelled", "client disconnected"),
        ({**LEFT, "complete": True}, "completed", ""),
        ({"error": "it reported: the GPU fell off"}, "failed", "w0: it reported: the GPU fell off"),
        (
            {"flags": ("upstream_connection_termination",)},
            "failed",
            "w0: upstream connection termination",
        ),
        ({}, "failed", "w0: its answer broke off"),
    ],
    ids=["left", "reset by the client", "left after the end", "error", "worker lost", "short"],
)
async def test_the_outcome_of_a_call_follows_from_its_end(tmp_path, end, outcome, error):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await world.end(request.record, started=True, **USAGE, **end)
        await until(lambda: control.releases)
        assert ended(control) == (outcome, 3, error)


async def test_a_whole_answer_that_broke_off_is_not_retried(tmp_path):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request({**HELLO, "stream": False})
        await request.placed()
        await world.end(request.record, flags=("upstream_connection_termination",), status=503)
        await until(lambda: control.releases)
        assert not control.releases[0].retry_on_another_worker
        assert control.releases[0].outcome == "failed"


async def test_a_status_that_no_worker_may_send_is_an_error(tmp_path):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        status, headers, error = error_of(await request.answering(_status="302"))
        assert (status, error["code"]) == (502, "worker_failed")
        assert headers["x-fairserve-worker"] == "w0"
        assert ended(control) == ("failed", 0, "w0: it answered 302")


async def test_the_trailers_of_an_answer_are_left_as_they_are(tmp_path):
    async with envoy_world(Control("w0"), tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await request.send(response_trailers={})
        assert (await request.answer()).WhichOneof("response") == "response_trailers"


# --- stops and leases -----------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [True, False], ids=["running", "before its answer"])
async def test_a_call_that_control_stops_is_answered_with_an_error(tmp_path, begun):
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        if begun:
            await request.answering()
        control.on_cancel(Cancel("call", "cancelled", "an operator cancelled the run"))
        status, headers, error = error_of(await request.answer())
        assert (status, error["code"]) == (503, "call_stopped")
        assert error["message"] == "an operator cancelled the run"
        assert headers["x-fairserve-worker"] == "w0"
        await world.end(request.record, flags=("local_reset",), started=True, **USAGE)
        await until(lambda: control.releases)
        assert ended(control) == ("cancelled", 3, "an operator cancelled the run")


async def test_an_open_call_renews_its_lease_until_it_is_lost(tmp_path):
    control = Control("w0")
    control.lease_s = 0.02
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await until(lambda: len(control.reports) > 2)
        assert not any(report.started for report in control.reports)
        control.lease = False
        status, _, error = error_of(await request.answer())
        assert (status, error["message"]) == (503, "its lease has ended")


# --- ends without an entry ------------------------------------------------------------------------


async def test_a_stream_that_ends_without_an_entry_fails_with_its_last_progress(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(open_calls, "END_WAIT_S", 0.01)
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await world.progress(request.record, started=True, **USAGE)
        await until(lambda: control.reports and control.reports[-1].usage.output_tokens == 3)
        request.stream.cancel()
        await until(lambda: control.releases)
        assert ended(control) == ("failed", 3, "w0: its end was not reported")
        assert not len(world.calls)


async def test_a_client_that_leaves_while_its_call_is_sent_has_cancelled_it(tmp_path, monkeypatch):
    monkeypatch.setattr(open_calls, "END_WAIT_S", 0.01)
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.close()
        await until(lambda: control.releases)
        assert ended(control) == ("cancelled", 0, "client disconnected")


@pytest.mark.parametrize("reported", [True, False])
async def test_a_stream_may_end_before_its_decision_is_known_to_be_sent(
    tmp_path, monkeypatch, reported
):
    """A worker that fails at once, and a busy server: the end is that of the log, where it has one."""
    write = decisions._Exchange._write

    async def slow_write(exchange, response):
        await write(exchange, response)
        if response.HasField("request_body"):
            await asyncio.Event().wait()

    monkeypatch.setattr(decisions._Exchange, "_write", slow_write)
    if not reported:
        monkeypatch.setattr(open_calls, "END_WAIT_S", 0.01)
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        request.stream.cancel()
        await until(lambda: not world.parts.bodies.used_bytes)
        if reported:
            await world.end(request.record, flags=("upstream_connection_termination",), status=502)
        await until(lambda: control.releases)
        expected = ("failed", 0, "w0: upstream connection termination")
        assert ended(control) == (expected if reported else ("cancelled", 0, "client disconnected"))


async def test_a_stream_that_ends_without_an_entry_ends_as_the_file_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(open_calls, "END_WAIT_S", 0.01)
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        totals = AnswerTotals(12, 7)
        world.ends[request.record] = CallReport(
            request.record, ended=True, totals=totals, started=True, complete=True, status=200
        )
        request.stream.cancel()
        await until(lambda: control.releases)
        assert ended(control) == ("completed", 7, "")


@pytest.mark.parametrize("stopped", [False, True], ids=["not stopped", "stopped"])
async def test_an_entry_that_arrives_after_the_stream_counts(tmp_path, stopped):
    """Also if a user ends the run some milliseconds after its last answer."""
    control = Control("w0")
    async with envoy_world(control, tmp_path) as world:
        request = world.request()
        await request.placed()
        await request.answering()
        await request.close()
        assert await request.answer() == await request.answer()
        assert not control.releases
        if stopped:
            control.on_cancel(Cancel("call", "cancelled", "an operator cancelled the run"))
        await world.end(request.record, started=True, complete=True, **USAGE)
        await until(lambda: control.releases)
        assert ended(control) == ("completed", 3, "")


async def test_there_is_a_bound_of_open_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(open_calls, "MAX_OPEN_CALLS", 1)
    control = Control("w0", "w0")
    async with envoy_world(control, tmp_path) as world:
        await world.request().placed()
        status, _, error = error_of(await world.request().decided())
        assert (status, error["code"]) == (503, "queue_full")
        assert len(control.submitted) == 1


# --- the relay takes over -------------------------------------------------------------------------


class RelayWorker:
    """A worker of the relay with one answer, or an error to raise."""

    def __init__(self, error=None):
        self.error = error

    async def open(self, request):
        if self.error is not None:
            raise self.error
        usage = {"prompt_tokens": 12, "completion_tokens": 1}
        choice = {"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}
        self.chunks = iter([{"choices": [choice], "usage": usage}])
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        chunk = next(self.chunks, None)
        if chunk is None:
            raise StopAsyncIteration
        return WorkerChunk(chunk)

    def close(self):
        pass


async def taken_over(world, record, attempt="2"):
    """Return status, headers and text of the relay's answer to a request as Envoy sends it."""
    messages = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        messages.append(message)

    app = Starlette()
    app.state.completions = world.completions
    takeovers = Takeovers(None, world.calls, lambda request, error: _error(error))
    headers = [(b"x-fairserve-call", record.encode()), (b"x-envoy-attempt-count", attempt.encode())]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "app": app}
    async with asyncio.timeout(20):
        await takeovers(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
    return messages[0]["status"], found, b"".join(each.get("body", b"") for each in messages[1:])


def _error(error):
    from starlette.responses import JSONResponse

    return JSONResponse(error.body(), error.status)


async def test_the_relay_takes_over_after_a_failed_attempt(tmp_path):
    control = Control("w0", "w1")
    async with envoy_world(control, tmp_path, w1=RelayWorker()) as world:
        request = world.request()
        await request.placed()
        await world.attempt(request.record, flags=("upstream_connection_failure",))
        status, headers, text = await taken_over(world, request.record)
        assert status == 200
        assert text.endswith(b"data: [DONE]\n\n")
        assert (headers["x-fairserve-worker"], headers["x-fairserve-relay"]) == ("w1", "1")
        first, last = control.releases
        assert first.retry_on_another_worker
        assert first.error.startswith("w0: no connection: upstream connection failure")
        assert (last.outcome, last.usage.output_tokens) == ("completed", 1)
        assert world.carried[0].notes[0].startswith("no connection")
        # Envoy's entry of the whole request, and the end of its stream, change nothing.
        assert not (await request.answering(x_fairserve_relay="1")).response_headers.HasField(
            "response"
        )
        await world.end(request.record, status=200)
        await request.close()
        assert len(control.releases) == 2


@pytest.mark.parametrize(
    ("attempt", "error"),
    [
        ({"status": 500}, "w0: it answered 500: status 500"),
        ({"flags": ("upstream_remote_reset",)}, "w0: upstream remote reset"),
        (None, "w0: its connection broke before it answered"),
    ],
    ids=["status", "reset", "no entry"],
)
async def test_the_cause_of_the_failed_attempt_is_in_the_log(tmp_path, monkeypatch, attempt, error):
    monkeypatch.setattr(open_calls, "ATTEMPT_WAIT_S", 90 if attempt else 0.01)
    control = Control("w0", "w1")
    async with envoy_world(control, tmp_path, w1=RelayWorker()) as world:
        request = world.request()
        await request.placed()
        taking = asyncio.ensure_future(taken_over(world, request.record))
        if attempt is not None:
            await world.attempt(request.record, host="", **attempt)  # of the relay: not counted
            await world.attempt(request.record, **attempt)
        assert (await taking)[0] == 200
        assert control.releases[0].error == error


async def test_a_started_call_that_is_not_streamed_is_not_tried_again(tmp_path):
    control = Control("w0", "w1")
    async with envoy_world(control, tmp_path, w1=RelayWorker()) as world:
        request = world.request({**HELLO, "stream": False})
        await request.placed()
        world.carried[0].request.on_started()
        await world.attempt(request.record, flags=("upstream_connection_termination",))
        status, _, text = await taken_over(world, request.record)
        assert (status, json.loads(text)["error"]["code"]) == (502, "worker_failed")
        assert [release.retry_on_another_worker for release in control.releases] == [False]


async def test_the_relay_repeats_a_call_that_its_worker_rejected(tmp_path):
    control = Control("w0")
    rejected = WorkerRejectedError(400, {"message": "no tools here", "param": "tools"})
    async with envoy_world(control, tmp_path, w0=RelayWorker(rejected)) as world:
        request = world.request()
        await request.placed()
        await world.attempt(request.record, status=400)
        status, headers, text = await taken_over(world, request.record)
        assert (status, json.loads(text)["error"]["param"]) == (400, "tools")
        assert headers["x-envoy-ratelimited"] == "1", "Envoy would try again"
        assert ended(control)[0] == "failed"
        assert world.carried[0].notes == ["end"], "it is no failure of the worker"


async def test_a_call_that_missed_its_worker_has_no_failed_attempt(tmp_path):
    control = Control("w0")
    async with envoy_world(control, tmp_path, w0=RelayWorker()) as world:
        request = world.request()
        await request.placed()
        status, headers, _ = await taken_over(world, request.record, attempt="1")
        assert (status, headers["x-fairserve-worker"]) == (200, "w0")
        assert ended(control)[0] == "completed"


async def test_a_worker_that_envoy_cannot_reach_is_left_to_the_relay(tmp_path):
    control = Control("w1")
    async with envoy_world(control, tmp_path, w1=RelayWorker()) as world:
        request = world.request()
        headers, removed, body = await request.placed()
        assert (headers["x-fairserve-relay"], body, removed) == ("1", None, [])
        assert "x-gateway-destination-endpoint" not in headers
        assert (await taken_over(world, request.record, attempt="1"))[0] == 200
        assert ended(control)[0] == "completed"


async def test_a_stop_reaches_the_relay(tmp_path):
    control = Control("w1")

    class Waiting(RelayWorker):
        async def open(self, request):
            opened.set()
            await asyncio.Event().wait()

    opened = asyncio.Event()
    async with envoy_world(control, tmp_path, w1=Waiting()) as world:
        request = world.request()
        await request.placed()
        taking = asyncio.ensure_future(taken_over(world, request.record, attempt="1"))
        await opened.wait()
        control.on_cancel(Cancel("call", "cancelled", "an operator cancelled the run"))
        status, _, text = await taking
        assert (status, json.loads(text)["error"]["code"]) == (503, "call_stopped")
        assert ended(control) == ("cancelled", 0, "an operator cancelled the run")


async def test_a_call_is_taken_over_once(tmp_path):
    async with envoy_world(Control("w0"), tmp_path, w0=RelayWorker()) as world:
        request = world.request()
        await request.placed()
        assert (await taken_over(world, request.record, attempt="1"))[0] == 200
        assert (await taken_over(world, request.record, attempt="1"))[0] == 503
        assert (await taken_over(world, "call_unknown"))[0] == 503


# --- behind Envoy ---------------------------------------------------------------------------------


def forwarded(*values):
    return {"headers": [(b"x-forwarded-for", value) for value in values], "client": None}


@pytest.mark.parametrize(
    ("values", "client", "left"),
    [
        ((b"192.0.2.7",), "192.0.2.7", []),
        ((b"198.51.100.1, 192.0.2.7",), "192.0.2.7", [b"198.51.100.1"]),
        ((b"198.51.100.1", b"192.0.2.7"), "192.0.2.7", [b"198.51.100.1"]),
    ],
)
def test_the_peer_of_envoy_is_the_client(values, client, left):
    scope = envoys_client(forwarded(*values))
    assert scope["client"] == (client, 0)
    assert [value for _, value in scope["headers"]] == left


def test_a_request_without_a_peer_has_no_client():
    assert envoys_client(forwarded())["client"] is None


def test_other_requests_pass():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = TestClient(Takeovers(app, None, None))
    answer = client.post(CHAT)
    assert (answer.status_code, "x-fairserve-relay" in answer.headers) == (204, False)
