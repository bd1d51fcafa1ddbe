"""The log of requests and of calls that a worker failed, and their ids at clients and workers."""

import io
import json
import logging
from contextlib import contextmanager

import pytest
from every_task import REQUESTS, STREAMED, embedding_fleet, serves_every_task
from processes import eventually
from server_client import PROFILE
from whole_server import WholeServer

from fairserve.platform.server.logs import JsonFormatter, LogWriter

ACCESS, PLACEMENT = "fairserve.access", "fairserve.platform.serving.completions.relay"
PATH = "/v1/chat/completions"


class KeptLog:
    """The log of a block as the server's own writer writes it, in JSON."""

    def __init__(self):
        self.stream = io.StringIO()
        self.writer = LogWriter(self.stream, JsonFormatter())

    @property
    def text(self):
        """All lines so far; the writer is closed."""
        self.writer.close()
        return self.stream.getvalue()

    def events(self, logger):
        """The lines of one logger, parsed."""
        found = [json.loads(line) for line in self.text.splitlines()]
        return [each for each in found if each["logger"] == logger]


@contextmanager
def kept_log(level=logging.INFO):
    """Keep what is logged in the block."""
    kept, ours = KeptLog(), logging.getLogger("fairserve")
    before = ours.level
    ours.addHandler(kept.writer)
    ours.setLevel(level)
    try:
        yield kept
    finally:
        ours.removeHandler(kept.writer)
        ours.setLevel(before)
        kept.writer.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with WholeServer(tmp_path_factory.mktemp("data")) as server:
        server.tenant, server.its_app = server.new_tenant_and_app("one")
        server.key = server.its_app["api_key"]
        yield server


def ask(server, text, key=None, **more):
    messages = [{"role": "user", "content": text}]
    body = {"model": "scripted", "messages": messages, "max_tokens": 5, **more}
    return server.request("POST", PATH, key or server.key, json=body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_one_line_with_its_id_owner_tokens_and_times(server, stream):
    with kept_log() as log:
        answer = ask(server, "ok my-secret-prompt", stream=stream, user="secret-user")
    (line,) = log.events(ACCESS)
    call_id = answer.headers["x-request-id"]
    assert call_id.startswith("call_")
    assert server.worker.request_ids[-1] == call_id
    assert line["request_id"] == call_id
    assert (line["method"], line["path"], line["status"]) == ("POST", PATH, 200)
    assert (line["tenant"], line["app"]) == (server.tenant["id"], server.its_app["id"])
    assert (line["model"], line["worker"], line["client"]) == ("scripted", "w0", "testclient")
    tokens = (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"])
    assert tokens == (12, 4, 3)
    assert 0 <= line["queue_s"] <= line.get("ttft_s", line["queue_s"]) <= line["duration_s"]
    assert ("ttft_s" in line) == stream
    assert "my-secret-prompt" not in log.text
    assert "secret-user" not in log.text
    assert server.key not in log.text


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """Return the server, and by endpoint the worker that serves its calls."""
    folder = tmp_path_factory.mktemp("every")
    with (
        embedding_fleet(folder) as (embedding, fleet_file),
        WholeServer(folder / "data", fleet_file=fleet_file) as server,
    ):
        serves_every_task(server)
        server.key = server.new_tenant_and_app("one")[1]["api_key"]
        yield (
            server,
            {
                path: embedding if body["model"] == "bert" else server.worker
                for path, body in REQUESTS.items()
            },
        )


@pytest.mark.parametrize(
    ("path", "stream"),
    [*((path, False) for path in REQUESTS), *((path, True) for path in STREAMED)],
)
def test_the_worker_gets_the_id_of_the_call_from_every_endpoint(every, path, stream):
    server, workers = every
    body = REQUESTS[path] | ({"stream": True} if stream else {})
    own = {"x-request-id": "of-the-client"}
    with kept_log() as log:
        answer = server.request("POST", path, server.key, json=body, headers=own)
    assert answer.status_code == 200, answer.text
    call_id = answer.headers["x-request-id"]
    assert call_id.startswith("call_")
    assert workers[path].request_ids[-1] == call_id
    (line,) = log.events(ACCESS)
    assert (line["path"], line["request_id"]) == (path, call_id)


def test_a_rejected_call_has_its_reason(server):
    body = {"name": "limited", "profile": PROFILE, "contract": {"rpm_limit": 1}}
    key = server.call(server.tenant["api_key"], "POST", "/v1/apps", body)["api_key"]
    assert ask(server, "ok", key).status_code == 200
    with kept_log() as log:
        answer = ask(server, "ok", key)
    (line,) = log.events(ACCESS)
    assert (line["status"], line["error"]) == (429, "rate_limit_exceeded")
    assert line["reason"] == "contract_rpm"
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["request_id"].startswith("call_")
    assert "worker" not in line


def test_a_request_that_is_no_call_has_an_id_too(server):
    with kept_log() as log:
        answer = server.request("GET", f"/v1/apps/{server.its_app['id']}", server.tenant["api_key"])
        unknown = server.request("GET", "/v1/apps?name=secret-query", "sk-fs-a-" + "x" * 40)
    assert answer.headers["x-request-id"].startswith("req_")
    one, other = log.events(ACCESS)
    assert one["request_id"] == answer.headers["x-request-id"]
    assert (one["path"], one["tenant"]) == ("/v1/apps/{app_id}", server.tenant["id"])
    assert (other["status"], other["error"]) == (401, "invalid_api_key")
    assert other["request_id"] == unknown.headers["x-request-id"]
    assert "secret-query" not in log.text


def test_health_checks_do_not_fill_the_log(server):
    with kept_log() as log:
        assert server.client.get("/livez").status_code == 200
    assert log.events(ACCESS) == []
    with kept_log(logging.DEBUG) as log:
        server.client.get("/livez")
    assert len(log.events(ACCESS)) == 1


@pytest.mark.parametrize(
    ("word", "cause", "text"),
    [
        ("break", "silent", "its connection broke, or it did not answer in time"),
        ("error", "failed", "it reported: the GPU fell off"),
    ],
)
def test_a_worker_that_fails_in_the_middle_is_named_in_log_and_answer(server, word, cause, text):
    with kept_log() as log:
        answer = ask(server, f"{word} my-secret-prompt")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (502, "worker_failed")
    assert error["message"] == f"worker w0 failed while it was answering: {text}"
    assert server.worker.url.rpartition(":")[2] not in answer.text
    (failed,) = log.events(PLACEMENT)
    assert failed["level"] == "warning"
    assert failed["call_id"] == failed["request_id"] == answer.headers["x-request-id"]
    assert (failed["worker"], failed["cause"], failed["status"]) == ("w0", cause, None)
    (line,) = log.events(ACCESS)
    assert (line["status"], line["error"], line["worker"]) == (502, "worker_failed", "w0")
    assert line["output_tokens"] == 0, "the worker has reported none"
    assert "my-secret-prompt" not in log.text


def test_each_failed_attempt_is_logged_with_the_status_of_its_worker(server):
    with kept_log() as log:
        answer = ask(server, "poison")
    assert answer.status_code == 502
    failed = log.events(PLACEMENT)
    assert [(each["attempt"], each["status"], each["cause"]) for each in failed] == [
        (1, 500, "failed"),
        (2, 500, "failed"),
    ]
    assert {each["call_id"] for each in failed} == {answer.headers["x-request-id"]}
    eventually(lambda: server.client.get("/readyz").status_code == 200)
