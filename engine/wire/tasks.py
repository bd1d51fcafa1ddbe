"""Tasks of a model: it generates text, embeds texts, or ranks documents by a query.

An embedding or ranking call is one prompt pass over its inputs; its answer is one JSON object.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Literal, get_args

CompletionPath = Literal["/v1/chat/completions", "/v1/completions"]
PoolingPath = Literal["/v1/embeddings", "/v1/rerank"]
WorkerPath = CompletionPath | PoolingPath

EMBEDDINGS: PoolingPath = "/v1/embeddings"
RERANK: PoolingPath = "/v1/rerank"

Task = Literal["generate", "embed", "rerank"]
Tasks = frozenset[Task]
TASKS: Tasks = frozenset(get_args(Task))
GENERATE: Tasks = frozenset({"generate"})

TASK_OF_PATH: Mapping[str, Task] = MappingProxyType(
    {
        "/v1/chat/completions": "generate",
        "/v1/completions": "generate",
        EMBEDDINGS: "embed",
        RERANK: "rerank",
    }
)


def tasks_of(paths: Collection[str]) -> Tasks:
    """Return the tasks of a server that describes these paths.

    A server that describes completions generates and nothing else: some describe every path, whatever
    their model. Without any known path it generates, too.
    """
    found = {task for path, task in TASK_OF_PATH.items() if path in paths}
    return GENERATE if not found or "generate" in found else frozenset(found)
