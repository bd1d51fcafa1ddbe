"""OpenAI's chat and text completions, whose answers are the worker's own chunks.

Chunks get the platform's id and name, and lose the worker's usage. The usage of the whole answer is the
platform's and follows the last chunk, when the worker reports nothing more.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson

from fairserve.engine.wire.base import WorkerChunk, has_content
from fairserve.engine.wire.event_form import EventForm
from fairserve.engine.wire.tasks import EMBEDDINGS, RERANK, CompletionPath, WorkerPath
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.serving.completions.endpoint import CheckSize, ReadRequest, RelayedRequest
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.requests import (
    CHAT,
    TEXT,
    read_request,
)
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.tenancy.auth import Principal

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_HEAD = ("object", "created")
_MARK = secrets.token_hex(16)
"""Stands for the text of an event: no text of a worker or a client has it."""
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


class ChunkWriter:
    """Turns worker chunks into server-sent events for one client.

    ``include_usage`` is OpenAI's: null in every chunk, and a last chunk with the usage and no
    choices. With ``continuous_usage``, vLLM's, every chunk has the running usage. Each chunk names the
    ``service_tier``, if there is one to name.
    """

    def __init__(
        self,
        answer_id: str,
        model: str,
        *,
        include_usage: bool,
        continuous_usage: bool = False,
        service_tier: str | None = None,
    ) -> None:
        self._id = answer_id
        self._model = model
        self._include_usage = include_usage
        self._continuous_usage = continuous_usage
        self._tier = {} if service_tier is None else {"service_tier": service_tier}
        self._head: dict[str, Any] = {}
        """Fields that all chunks of the answer share."""
        self._form: EventForm | None = None
        self._around = b"", b""
        """The event of this form before and after its text."""

    def event(self, chunk: WorkerChunk) -> bytes:
        """Return the event of a chunk; empty if it is not for the client."""
        if chunk.form is not None and not self._continuous_usage:
            if chunk.form is not self._form:
                event = self._event(chunk.form.chunk_with(_MARK, chunk.output_tokens))
                before, _, after = event.partition(_MARK.encode())
                self._form, self._around = chunk.form, (before, after)
            before, after = self._around
            return before + chunk.raw_text + after
        return self._event(chunk.data)

    def _event(self, data: dict[str, Any]) -> bytes:
        if self._include_usage and not self._head:
            self._head = {name: data[name] for name in _HEAD if name in data}
        changed = dict(data)
        usage = changed.pop("usage", None)
        if not any(map(_visible, data.get("choices") or ())):
            return b""  # it was sent for its usage only
        if self._include_usage:
            changed["usage"] = usage if self._continuous_usage else None
        changed["id"], changed["model"] = self._id, self._model
        changed |= self._tier
        return b"data: " + orjson.dumps(changed) + b"\n\n"

    def end(self, usage: dict[str, Any]) -> bytes:
        """Return the end of a complete answer, with its usage if the client wants it."""
        if not self._include_usage:
            return DONE
        common = {"id": self._id, **self._head, "model": self._model, **self._tier}
        chunk = {**common, "choices": [], "usage": usage}
        return b"data: " + orjson.dumps(chunk) + b"\n\n" + DONE


def error_event(error: FairServeError) -> bytes:
    """Return the event of an error after the headers were sent. No ``[DONE]`` follows."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


def _visible(choice: Any) -> bool:
    if not isinstance(choice, dict) or has_content(choice) or choice.get("logprobs"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(delta.get("role"))


CHAT_COMPLETIONS = OpenAIEndpoint(CHAT)
TEXT_COMPLETIONS = OpenAIEndpoint(TEXT)
