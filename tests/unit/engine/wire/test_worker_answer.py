"""An answer of one JSON object is read once; a broken one fails like a call that never began."""

import numpy as np
import pytest
from aiohttp import web
from received import send

from fairserve.engine.wire.base import WorkerRejectedError, WorkerRequest, WorkerUnavailableError
from fairserve.engine.wire.client import HttpWorkerClient, worker_session
from fairserve.engine.wire.tasks import EMBEDDINGS, RERANK, tasks_of

GOOD = '{"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 3}}'


@pytest.fixture
async def ask():
    """Return a function that opens a call at a server whose answer is chosen by ``user``."""
    bodies, sent = [], []

    async def answer(request):
        body = await request.json()
        bodies.append(body)
        status, text = body["input"].split(" ", 1)
        if text == "break":
            request.transport.abort()
        return web.Response(status=int(status), text=text, content_type="application/json")

    app = web.Application()
    app.router.add_post(EMBEDDINGS, answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    async with worker_session() as session:
        client = HttpWorkerClient(url, session, "openai")

        async def ask(text, status=200):
            body = {"model": "m", "input": f"{status} {text}", "user": "ann", "priority": 3}
            answer = send(client, WorkerRequest(EMBEDDINGS, body, "c", "t/u"))
            chunks = [chunk.data async for chunk in answer]
            sent.append(answer.starts)
            return chunks

        ask.bodies, ask.sent = bodies, sent
        yield ask
    await runner.cleanup()


async def test_the_object_is_the_only_chunk(ask):
    (data,) = await ask(GOOD)
    assert data["usage"] == {"prompt_tokens": 3}
    assert ask.sent == [1]
    assert ask.bodies[0].keys() == {"model", "input"}, "neither stream nor the platform's fields"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "failed"),
        ("[1]", "failed"),
        ('{"error": {"message": "x"}}', "failed"),
        ("break", "silent"),
    ],
)
async def test_a_broken_answer_may_be_tried_elsewhere(ask, text, cause):
    with pytest.raises(WorkerUnavailableError) as raised:
        await ask(text)
    assert raised.value.cause == cause


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_path_that_is_not_served_rejects_the_call(ask, status):
    with pytest.raises(WorkerRejectedError) as raised:
        await ask("{}", status)
    assert raised.value.status == 404


def test_inputs_and_documents_are_sequences():
    def count(path, **body):
        return WorkerRequest(path, body, "c", "t/u").sequences

    assert [count(EMBEDDINGS, input=each) for each in ("a", [7, 8], ["a", "b"], [[7], [8]])] == [
        1,
        1,
        2,
        2,
    ]
    assert count(RERANK, query="q", documents=["a", "b", "c"]) == 3
    ids = np.arange(5, dtype=np.uint32)
    assert WorkerRequest("/v1/completions", {}, "c", "t/u", token_ids=ids).prompt_tokens == 5


@pytest.mark.parametrize(
    ("paths", "tasks"),
    [
        ((), {"generate"}),
        (("/v1/embeddings", "/v1/rerank", "/v1/models"), {"embed", "rerank"}),
        (("/v1/rerank",), {"rerank"}),
        (("/v1/embeddings", "/v1/completions"), {"generate"}),
    ],
)
def test_tasks_are_those_of_the_described_paths(paths, tasks):
    assert tasks_of(paths) == tasks
