"""A server reports which workers serve, and what the others wait for."""

import functools
import threading
from unittest import mock

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

from fairserve.platform.fleet import models
from fairserve.platform.fleet.model_pools import ModelPools
from fairserve.platform.fleet.prompts.reader import BytesCounter
from fairserve.platform.fleet.prompts.tokenizer_files import NoTokenizerError
from fairserve.platform.server import wiring

PATH = "/v1/chat/completions"
WORKERS = "/admin/cluster/workers"


class Tokenizers:
    """Tokenizers that do not exist; fetching a name that contains ``slow`` takes long."""

    def __init__(self):
        self.fetched = threading.Event()

    def load(self, name, *, fetch):
        if "slow" in name and fetch:
            assert self.fetched.wait(90)
            return BytesCounter()
        raise NoTokenizerError("no such tokenizer")


@pytest.fixture(scope="module")
def tokenizers():
    """Return tokenizers, one of which waits until it is fetched."""
    return Tokenizers()


@pytest.fixture(scope="module")
def worker():
    """Yield a worker that counts prompts itself."""
    worker = ScriptedWorker(model="name-of-its-own", tokenizes=True)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def server(start_server, worker, tokenizers):
    pools = functools.partial(ModelPools, load=tokenizers.load)
    with mock.patch.object(wiring, "ModelPools", pools):
        yield start_server("--worker-urls", worker.url)


def call(server, model, text="ok", **more):
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return server.post(PATH, body)


def worker_of(server, worker_id):
    return next(each for each in server.cluster()["workers"] if each["worker_id"] == worker_id)


def test_a_worker_counts_prompts_without_a_tokenizer(server, worker):
    (model,) = server.cluster()["models"]
    assert (model["tokenizer"], model["exact_tokens"]) == ("worker", True)
    answer = call(server, worker.model, "ok " + "x" * 97)
    assert answer.status_code == 200, answer.text
    too_long = call(server, worker.model, "ok " + "x" * 1021)
    assert too_long.status_code == 400
    assert "the prompt has 1024 tokens; the context is 1024" in too_long.json()["error"]["message"]


def test_a_worker_is_ready_once_its_model_is_served(server, tokenizers):
    slow = ScriptedWorker(model="org/slow-model")
    try:
        body = {"id": "slow", "url": slow.url}
        assert server.admin("POST", WORKERS, json=body).status_code == 201
        reason = "the tokenizer of 'org/slow-model' is being loaded from 'org/slow-model'"
        eventually(lambda: worker_of(server, "slow")["reason"] == reason)
        seen = worker_of(server, "slow")
        assert (seen["state"], seen["ready"]) == ("joining", False)
        listed = server.admin("GET", f"{WORKERS}/slow").json()
        assert (listed["state"], listed["problem"]) == ("joining", reason)
        assert server.http.get("/health/readiness").json()["workers"] == 1
        assert call(server, slow.model).status_code == 503
        tokenizers.fetched.set()
        eventually(lambda: server.http.get("/health/readiness").json()["workers"] == 2)
        assert worker_of(server, "slow")["state"] == "ready"
        assert call(server, slow.model).status_code == 200
    finally:
        tokenizers.fetched.set()
        slow.close()
        server.admin("DELETE", f"{WORKERS}/slow")


def test_calls_do_not_wait_for_a_long_lost_worker(start_server, monkeypatch):
    worker = ScriptedWorker()
    server = start_server("--worker-urls", worker.url, "--max-queue-wait-s", "2")
    worker.close()
    waiting = threading.Thread(target=call, args=(server, "scripted"))
    waiting.start()
    eventually(lambda: server.cluster()["workers"][0]["state"] != "ready")
    answer = server.http.get("/health/readiness")
    assert (answer.status_code, answer.json()["status"]) == (503, "no worker")
    monkeypatch.setattr(models, "ABSENT_S", 0.0)
    answer = call(server, "scripted")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "no_worker")
    assert "no worker of 'scripted' has responded for" in error["message"]
    assert answer.headers["retry-after"]
    waiting.join()
