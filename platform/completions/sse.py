"""Chunks as the client asked for them: the worker's running usage is taken out again."""

from __future__ import annotations

from typing import Any

import orjson

from fairserve.engine.base import WorkerChunk
from fairserve.engine.chunk_output import has_content
from fairserve.platform.errors import FairServeError

KEEP_ALIVE = b": waiting for a worker\n\n"
DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Turns worker chunks into server-sent events for one client.

    ``include_usage`` is OpenAI's: null in every chunk, and a last chunk with the usage and no
    choices. A chunk that needs no change is passed on byte for byte.
    """

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._model = model
        self._include_usage = include_usage

    def event(self, chunk: WorkerChunk) -> bytes:
        """The event of a chunk; empty if the client is not to see it."""
        data = chunk.data
        if not self._include_usage and "usage" not in data and data.get("model") == self._model:
            return b"data: " + chunk.raw + b"\n\n"
        changed = dict(data)
        usage = changed.pop("usage", None)
        choices = data.get("choices") or []
        if not choices:
            if not self._include_usage:
                return b""
            changed["usage"] = usage
        else:
            if not any(_visible(choice) for choice in choices):
                return b""  # it was sent for its usage only
            if self._include_usage:
                changed["usage"] = None
        changed["model"] = self._model
        return b"data: " + orjson.dumps(changed) + b"\n\n"


def error_event(error: FairServeError) -> bytes:
    """An error after the headers went out. No ``[DONE]`` follows: the answer is not complete."""
    return b"data: " + orjson.dumps(error.body()) + b"\n\n"


def _visible(choice: Any) -> bool:
    if not isinstance(choice, dict) or has_content(choice) or choice.get("logprobs"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(delta.get("role"))
