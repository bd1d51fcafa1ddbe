"""Several models run at once, each with its own workers, and split between versions."""

import concurrent.futures

import pytest
from processes import eventually
from scripted_worker import ScriptedWorker

PATH = "/v1/chat/completions"
WORKERS = "/admin/cluster/workers"
ALIASES = "/admin/cluster/aliases"


@pytest.fixture(scope="module")
def workers():
    """Yield two workers of one model, one of another, and one each of two versions."""
    models = {"a0": "alpha", "a1": "alpha", "b0": "beta", "v1": "chat-v1", "v2": "chat-v2"}
    found = {name: ScriptedWorker(model=model) for name, model in models.items()}
    yield found
    for worker in found.values():
        worker.close()


@pytest.fixture(scope="module")
def server(start_fleet, workers):
    fleet = [{"id": n, "url": w.url, "model": w.model} for n, w in workers.items()]
    server = start_fleet(fleet, "--max-queue-wait-s", "20", aliases={"gpt-4o": "beta"})
    eventually(lambda: server.http.get("/health/readiness").json()["models"] == 4)
    return server


def call(server, model, text="ok", run=None):
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
    headers = {"X-Interaction-Id": run} if run else {}
    return server.post(PATH, body, headers=headers)


def test_every_call_goes_to_a_worker_of_its_model(server, workers):
    asked = ["alpha", "beta", "gpt-4o"] * 20
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda each: call(server, each), asked))
    assert [answer.status_code for answer in answers] == [200] * len(asked)
    for name, answer in zip(asked, answers, strict=True):
        worker = answer.headers["x-fairserve-worker"]
        assert worker in ({"a0", "a1"} if name == "alpha" else {"b0"})
        assert answer.headers["x-fairserve-model"] == workers[worker].model
        assert answer.json()["model"] == name
    for worker in workers.values():
        assert {each["model"] for each in worker.bodies} <= {worker.model}


def test_a_full_queue_does_not_delay_other_models(server, workers):
    """``beta`` has one worker; its calls wait there while those of ``alpha`` are answered."""
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        text = "stall " + "x" * 2000
        held = [threads.submit(call, server, "beta", text) for _ in range(8)]
        eventually(lambda: server.cluster()["queued_calls"] > 0)
        for _ in range(5):
            assert call(server, "alpha").status_code == 200
        assert not any(each.done() for each in held)

        def done():
            workers["b0"].release()
            return all(each.done() for each in held)

        eventually(done)
    assert {each.result().status_code for each in held} == {200}


def test_a_run_may_use_several_models(server):
    for model in ("alpha", "beta", "gpt-4o"):
        assert call(server, model, run="run-spans").status_code == 200
    eventually(lambda: len(server.rows(interaction_id="run-spans")) == 3)
    rows = server.rows(interaction_id="run-spans")
    assert sorted((row["model"], row["served_model"], row["stage"]) for row in rows) == [
        ("alpha", "alpha", 1),
        ("beta", "beta", 2),
        ("gpt-4o", "beta", 3),
    ]


def test_a_run_keeps_its_version_and_shares_follow_the_weights(server):
    server.admin("PUT", f"{ALIASES}/chat", json={"target": {"chat-v1": 3, "chat-v2": 1}})

    def version(run):
        answer = call(server, "chat", run=run)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "chat"
        return answer.headers["x-fairserve-model"]

    runs = [f"run-split-{number}" for number in range(60)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        first = list(threads.map(version, runs))
        again = list(threads.map(version, runs))
        assert again == first
        assert 33 <= first.count("chat-v1") <= 55  # 45 expected; bounds at 3.6 standard deviations
        server.admin("PUT", f"{ALIASES}/chat", json={"target": {"chat-v1": 1, "chat-v2": 1}})
        moved = list(threads.map(version, runs))
    assert {(a, b) for a, b in zip(first, moved, strict=True) if a != b} == {("chat-v1", "chat-v2")}


def test_another_version_serves_while_one_has_no_worker(server, workers):
    server.admin("PUT", f"{ALIASES}/canary", json={"target": {"chat-v1": 1, "new": 1e6}})
    assert call(server, "canary").headers["x-fairserve-model"] == "chat-v1", "no worker yet"
    worker = ScriptedWorker(model="new")
    try:
        body = {"id": "n0", "url": worker.url, "model": "new"}
        assert server.admin("POST", WORKERS, json=body).status_code == 201
        eventually(lambda: call(server, "canary").headers.get("x-fairserve-model") == "new")
        server.admin("POST", f"{WORKERS}/n0/drain")
        assert call(server, "canary").headers["x-fairserve-model"] == "chat-v1"
    finally:
        worker.close()
        server.admin("DELETE", f"{WORKERS}/n0")
