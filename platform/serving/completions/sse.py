"""Write chunks for the client: with the platform's id and name, without the worker's usage.

The usage of the whole answer is the platform's and follows the last chunk, when the worker reports
nothing more.
"""

from __future__ import annotations

import secrets
from typing import Any

import orjson

from fairserve.engine.wire.base import WorkerChunk, has_content
from fairserve.engine.wire.event_form import EventForm
from fairserve.platform.base.errors import FairServeError

KEEP_ALIVE = b": waiting for a worker\n\n"
DONE = b"data: [DONE]\n\n"
_HEAD = ("object", "created")
_MARK = secrets.token_hex(16)
"""Stands for the text of an event: no text of a worker or a client has it."""


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
