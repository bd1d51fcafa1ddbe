"""OpenAI's chat and text completions, whose answers are the worker's own chunks, renamed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from fairserve.engine.wire.base import WorkerChunk
from fairserve.engine.wire.tasks import EMBEDDINGS, RERANK, CompletionPath, WorkerPath
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.serving.completions.endpoint import CheckSize, ReadRequest, RelayedRequest
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.requests import (
    CHAT,
    TEXT,
    read_request,
)
from fairserve.platform.serving.completions.sse import KEEP_ALIVE, ChunkWriter, error_event
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.tenancy.auth import Principal

_PREFIXES: Mapping[WorkerPath, str] = MappingProxyType(
    {CHAT: "chatcmpl-", TEXT: "cmpl-", EMBEDDINGS: "embd-", RERANK: "rerank-"}
)
"""Begin of the ids of answers, which may be named as parents; the call's id follows."""


class OpenAIEndpoint:
    """An endpoint whose requests workers understand as they are."""

    def __init__(self, path: CompletionPath) -> None:
        self.path: CompletionPath = path

    async def read(self, raw: bytes, principal: Principal, check_size: CheckSize) -> ReadRequest:
        """Parse and check a body."""
        request = await read_request(self.path, raw, check_size)
        return ReadRequest(request, partial(OpenAIWriter, request))


class OpenAIWriter:
    """Writes chunks and answers in OpenAI's format."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: RelayedRequest, checked: CheckedCall) -> None:
        self._id, self._model = _PREFIXES[request.path] + checked.call_id, checked.answer_name
        tier = checked.call.tier
        self._tier = tier if request.service_tier or tier != "default" else None
        """The tier that was given, for a client that requests one or gets another than the usual."""
        self._request = request
        self._chunks: ChunkWriter
        """Writes the stream, which has begun."""

    def begin(self) -> bytes:
        """Return nothing: the first chunk is the first event."""
        self._chunks = ChunkWriter(
            self._id,
            self._model,
            include_usage=self._request.include_usage,
            continuous_usage=self._request.continuous_usage,
            service_tier=self._tier,
        )
        return b""

    def event(self, chunk: WorkerChunk) -> bytes:
        """Return the event of a chunk."""
        return self._chunks.event(chunk)

    async def end(self, usage: dict[str, Any]) -> bytes:
        """Return the end of a complete stream."""
        return self._chunks.end(usage)

    async def whole(self, merger: Merger, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the merged answer."""
        answer = merger.answer(self._id, self._model, usage)
        return answer if self._tier is None else answer | {"service_tier": self._tier}

    def error_event(self, error: FairServeError) -> bytes:
        """Return the event of an error."""
        return error_event(error)

    def error_body(self, error: FairServeError) -> dict[str, Any]:
        """Return the body of an error."""
        return error.body()


CHAT_COMPLETIONS = OpenAIEndpoint(CHAT)
TEXT_COMPLETIONS = OpenAIEndpoint(TEXT)
