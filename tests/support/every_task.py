"""A fleet that serves every endpoint of calls, and a smallest request for each."""

import contextlib
import json

from embedding_server import Embedder, EmbeddingServer, write_model
from processes import eventually

REQUESTS = {
    "/v1/chat/completions": {
        "model": "scripted",
        "messages": [{"role": "user", "content": "ok"}],
    },
    "/v1/completions": {"model": "scripted", "prompt": "ok"},
    "/v1/responses": {"model": "scripted", "input": "ok"},
    "/v1/messages": {
        "model": "scripted",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "ok"}],
    },
    "/v1/embeddings": {"model": "bert", "input": "a small cat"},
    "/v1/rerank": {"model": "bert", "query": "a cat", "documents": ["a small cat", "b"]},
}
"""Body of a call by endpoint."""
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@contextlib.contextmanager
def embedding_fleet(folder):
    """Start an embedding worker; yield it and a fleet file that has it, beside a scripted worker."""
    embedder = Embedder(write_model(folder / "bert"))
    with contextlib.closing(EmbeddingServer(embedder)) as worker:
        entry = {"id": "e0", "url": worker.url, "kind": "openai", "model": "bert"}
        path = folder / "fleet.json"
        path.write_text(json.dumps({"workers": [entry | {"tasks": ["embed", "rerank"]}]}))
        yield worker, path


def serves_every_task(server):
    """Wait until both workers have joined a server."""
    eventually(lambda: len(server.platform.models.served()) == 2, "a worker has not joined")
