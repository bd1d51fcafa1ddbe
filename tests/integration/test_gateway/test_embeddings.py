"""Embedding workers with a small BERT behind the server, called by OpenAI's client."""

import base64
import concurrent.futures
import contextlib
import json

import numpy as np
import openai
import pytest
from embedding_server import CONTEXT, Embedder, EmbeddingServer, write_model
from processes import eventually
from scripted_worker import ScriptedWorker

PATH, RERANK = "/v1/embeddings", "/v1/rerank"
TEXTS = ["a small cat", "b", "the quick brown fox"]
TASKS = ["embed", "rerank"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def embedder(checkpoint):
    return Embedder(checkpoint)


class Workers:
    """Starts servers with embedding workers, and a chat worker beside them."""

    def __init__(self, start_server, folder, checkpoint, embedder, stack):
        self._start, self._folder, self._stack = start_server, folder, stack
        self._checkpoint, self._embedder = checkpoint, embedder

    def start(self, count, *flags, **fields):
        """Return a server and its embedding workers; ``fields`` are those of each in the fleet file."""
        chat = self._stack.enter_context(contextlib.closing(ScriptedWorker()))
        workers = [
            self._stack.enter_context(contextlib.closing(EmbeddingServer(self._embedder)))
            for _ in range(count)
        ]
        fields = {"kind": "openai", "model": "bert", "tasks": TASKS, **fields}
        fleet = {
            "workers": [
                {"id": "chat", "url": chat.url, "model": "scripted"},
                *({"id": f"e{n}", "url": w.url, **fields} for n, w in enumerate(workers)),
            ],
            "aliases": {"text-embedding-3-small": "bert"},
            "models": {"bert": {"tokenizer": self._checkpoint}},
        }
        path = self._folder / f"{id(chat)}.json"
        path.write_text(json.dumps(fleet))
        server = self._start("--fleet-file", str(path), *flags)
        eventually(
            lambda: (
                sum(worker["ready"] for worker in server.cluster()["workers"]) == count + 1
                and {model["model"] for model in server.cluster()["models"]} == {"bert", "scripted"}
            ),
            lambda: server.cluster(),
        )
        return server, workers


@pytest.fixture(scope="module")
def made(start_server, tmp_path_factory, checkpoint, embedder):
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("fleet")
        yield Workers(start_server, folder, checkpoint, embedder, stack)


@pytest.fixture(scope="module")
def served(made):
    return made.start(1, "--max-queue-wait-s", "60")


@pytest.fixture(scope="module")
def server(served):
    return served[0]


@pytest.fixture(scope="module")
def worker(served):
    return served[1][0]


def embed(server, text="a", key=None, headers=None, **more):
    body = {"model": "bert", "input": text, **more}
    return server.post(PATH, body, key, headers=headers or {})


def rejection(answer):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_openais_client_gets_the_models_vectors(server, embedder, form):
    more = {} if form is None else {"encoding_format": form}
    raw = server.openai().embeddings.with_raw_response.create(model="bert", input=TEXTS, **more)
    answer = raw.parse()
    assert [each.index for each in answer.data] == [0, 1, 2]
    for text, each in zip(TEXTS, answer.data, strict=True):
        vector = each.embedding
        if form == "base64":
            vector = np.frombuffer(base64.b64decode(vector), dtype=np.float32)
        assert np.allclose(vector, embedder.vector(text).numpy(), atol=1e-6)
    tokens = sum(len(embedder.ids(text)) for text in TEXTS)
    assert (answer.model, answer.usage.prompt_tokens) == ("bert", tokens)
    assert raw.headers["x-fairserve-worker"] == "e0"
    assert raw.headers["x-fairserve-queue-ms"].isdigit()
    row = server.row(call_id=raw.headers["x-request-id"])
    assert (row["outcome"], row["served_model"], row["worker"]) == ("completed", "bert", "e0")
    used = row["input_tokens"], row["system_tokens"], row["cached_tokens"], row["output_tokens"]
    assert used == (tokens, 0, 0, 0)
    assert row["service"] == tokens


def test_token_ids_are_inputs(server, embedder):
    ids = [embedder.ids(text) for text in TEXTS]
    for inputs, expected in ((ids, ids), (ids[0], ids[:1])):
        answer = embed(server, inputs, model="text-embedding-3-small").json()
        assert answer["model"] == "text-embedding-3-small"
        tokens = sum(map(len, expected))
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        vectors = [embedder.vector(each).numpy() for each in expected]
        assert np.allclose([each["embedding"] for each in answer["data"]], vectors, atol=1e-6)


def test_documents_are_ranked(server, embedder):
    scores = {text: float(embedder.vector("the fox") @ embedder.vector(text)) for text in TEXTS}
    best = sorted(TEXTS, key=lambda text: -scores[text])
    body = {"model": "bert", "query": "the fox", "documents": TEXTS}
    whole = server.post(RERANK, body)
    assert whole.status_code == 200, whole.text
    results = whole.json()["results"]
    assert [TEXTS[each["index"]] for each in results] == best
    assert [each["relevance_score"] for each in results] == pytest.approx(
        [scores[text] for text in best], abs=1e-6
    )
    row = server.row(call_id=whole.headers["x-request-id"])
    tokens = sum(len(embedder.ids(text)) for text in ("the fox", *TEXTS))
    assert (row["input_tokens"], row["output_tokens"]) == (tokens, 0)
    objects = [{"text": text} for text in TEXTS]
    for given, documents in ((True, [{"text": best[0]}]), (False, [None])):
        more = {"documents": objects, "top_n": 1, "return_documents": given}
        answer = server.post(RERANK, {**body, **more}).json()
        assert [each.get("document") for each in answer["results"]] == documents


def test_a_tier_is_given_to_embeddings_and_ranks(server):
    client = server.openai()
    raw = client.embeddings.with_raw_response.create(
        model="bert", input="a", extra_body={"service_tier": "flex"}
    )
    ranked = server.post(
        RERANK, {"model": "bert", "query": "a", "documents": TEXTS, "service_tier": "flex"}
    )
    for headers, tier in (
        (raw.headers, raw.parse().model_extra["service_tier"]),
        (ranked.headers, ranked.json()["service_tier"]),
    ):
        assert tier == "flex"
        assert server.row(call_id=headers["x-request-id"])["service_tier"] == "flex"
    with pytest.raises(openai.BadRequestError, match="the operator has not granted"):
        client.embeddings.create(model="bert", input="a", extra_body={"service_tier": "priority"})


def test_a_call_belongs_to_its_run(server):
    headers = {"X-Interaction-Id": "run-rag", "X-Call-Id": "look-up"}
    first = embed(server, "a question", headers=headers, user="ann")
    assert first.json()["id"] == "embd-look-up"
    parents = {"interaction_id": "run-rag", "parent_ids": "embd-look-up"}
    messages = [{"role": "user", "content": "ok"}]
    body = {"model": "scripted", "messages": messages, "metadata": parents, "user": "ann"}
    assert server.post("/v1/chat/completions", body).status_code == 200
    eventually(lambda: len(server.rows(interaction_id="run-rag")) == 2)
    rows = sorted(server.rows(interaction_id="run-rag"), key=lambda row: row["stage"])
    assert [(row["served_model"], row["stage"]) for row in rows] == [("bert", 1), ("scripted", 2)]
    assert {row["user_id"] for row in rows} == {"ann"}


def test_a_key_returns_the_same_answer(server, worker):
    headers = {"Idempotency-Key": "the same"}
    first = embed(server, "again", headers=headers)
    calls = len(worker.bodies)
    again = embed(server, "again", headers=headers)
    assert again.headers["x-fairserve-replayed"] == "true"
    assert (again.json(), len(worker.bodies)) == (first.json(), calls)


def test_what_a_model_or_a_worker_cannot_do_is_named(server):
    field, message = rejection(embed(server, model="scripted"))
    assert field == "model"
    assert "chat: vllm" in message
    assert "serve generate" in message
    chat = {"model": "bert", "messages": [{"role": "user", "content": "x"}]}
    field, message = rejection(server.post("/v1/chat/completions", chat))
    assert field == "model"
    assert "e0: openai" in message
    node = {"id": "a", "agent": "a", "model": "bert", "prompt": "x"}
    field, message = rejection(server.post("/v1/interactions", {"user": "u", "nodes": [node]}))
    assert field == "nodes[0].model", message
    field, message = rejection(embed(server, dimensions=8))
    assert (field, "worker e0" in message) == ("dimensions", True)
    field, message = rejection(embed(server, truncate_prompt_tokens=3))
    assert (field, "'bert'" in message) == ("truncate_prompt_tokens", True), "vLLM's only"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [3, "a"]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": ["a", "b " * CONTEXT]}, "input[1]"),
        ({"input": [[7] * (CONTEXT + 1)]}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "stream": True}, "stream"),
        ({"input": "a", "priority": 1}, "priority"),
    ],
    ids=str,
)
def test_wrong_inputs_are_named(server, given, field):
    found, message = rejection(server.post(PATH, {"model": "bert", **given}))
    assert found.startswith(field), message


def test_a_quota_rejects_embeddings(server):
    profile = {"stages": [{"input_tokens": 30, "output_tokens": 20}], "calls_per_interaction": 3}
    limits = {"rpm_limit": 2, "tpm_limit": 100}
    body = {"name": "few", "profile": profile, "contract": limits}
    app = server.request("POST", "/v1/apps", server.tenant_key, json=body)
    assert app.status_code == 201, app.text
    key = app.json()["api_key"]
    field, message = rejection(embed(server, ["x" * 60, "y" * 60], key))
    assert field == "input", message
    answers = [embed(server, key=key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
    assert int(answers[2].headers["retry-after"]) > 0
    with pytest.raises(openai.RateLimitError):
        server.openai(key).embeddings.create(model="bert", input="a")


def test_a_client_that_disconnects_cancels_its_call(served):
    server, (worker,) = served
    worker.hold()
    disconnects = worker.disconnects
    try:
        with server.asking(PATH, {"model": "bert", "input": "never read", "user": "gone"}):
            eventually(lambda: worker.held)
        eventually(lambda: worker.disconnects == disconnects + 1)
    finally:
        worker.release()
    row = server.row(user_id="gone")
    # The worker reports nothing before its answer: the inputs that it was sent count as used.
    assert (row["outcome"], row["input_tokens"]) == ("cancelled", len("neverread") + 2)


def test_one_call_of_another_user_waits_for_few_of_a_flooder(made, embedder):
    server, (worker,) = made.start(1, "--max-queue-wait-s", "60", concurrency=1, kv_tokens=2000)
    worker.hold()
    big = ["x" * 100] * 10
    with concurrent.futures.ThreadPoolExecutor(13) as threads:
        calls = [threads.submit(embed, server, big, user="flooder") for _ in range(12)]
        eventually(lambda: server.cluster()["queued_calls"] >= 8, lambda: server.cluster())
        calls.append(threads.submit(embed, server, "light", user="light"))
        eventually(lambda: server.cluster()["queued_calls"] >= 10, lambda: server.cluster())
        for number in range(1, 14):
            eventually(lambda number=number: len(worker.bodies) >= number and worker.held)
            worker.release(all_later=False)
            eventually(lambda number=number: sum(c.done() for c in calls) >= number)
    assert {call.result().status_code for call in calls} == {200}
    place = [body["input"] for body in worker.bodies].index("light")
    assert place <= 4, "the running call, those sent before, and no more of the flooder's"


def test_a_call_of_a_killed_worker_is_retried_on_the_other(made):
    server, workers = made.start(2)
    for worker in workers:
        worker.hold()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        answer = thread.submit(embed, server, "precious", user="keen")
        eventually(lambda: any(worker.held for worker in workers))
        lost, other = workers if workers[0].held else reversed(workers)
        other.release()
        lost.close()
        assert answer.result().status_code == 200, answer.result().text
    assert len(other.bodies) == len(lost.bodies) == 1
    row = server.row(user_id="keen")
    assert (row["outcome"], row["input_tokens"]) == ("completed", len("precious") + 2)


def test_a_batch_embeds(server, embedder):
    client = server.openai()
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": PATH,
        "body": {"model": "bert", "input": "a"},
    }
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
    )

    def ended():
        found = client.batches.retrieve(batch.id)
        return found if found.status in ("completed", "failed", "expired") else None

    batch = eventually(ended)
    assert (batch.status, batch.request_counts.completed) == ("completed", 1), batch
    answer = json.loads(client.files.content(batch.output_file_id).text)["response"]["body"]
    (vector,) = (each["embedding"] for each in answer["data"])
    assert np.allclose(vector, embedder.vector("a").numpy(), atol=1e-6)
