"""Read the bytes of a streamed answer as events, without a connection.

The answer is complete when ``[DONE]`` follows a ``finish_reason`` for every choice that was begun. Some
servers end the stream normally after they aborted a call: that is a broken answer, not a short one.
"""

from __future__ import annotations

from typing import Any

import orjson

from fairserve.engine.wire.base import FailureCause, WorkerRejectedError, WorkerStreamError

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Maximum size of a single event, which is held in memory; a longer one breaks the answer."""
_REJECTIONS = frozenset({"invalid_request_error", "BadRequestError"})
"""Types of error events that reject the request itself, in our worker and in vLLM."""


class StreamEvents:
    """Events of one answer. O(bytes); holds the tail of an event that is split over chunks."""

    def __init__(self) -> None:
        self._tail = b""
        self._choices: set[int] = set()
        self._finished: set[int] = set()

    def feed(self, received: bytes) -> list[bytes]:
        """Return the contents of the events that are whole now.

        Raises WorkerStreamError for an event that is too long.
        """
        lines = (self._tail + received).split(b"\n")
        self._tail = lines.pop()
        if len(self._tail) > MAX_EVENT_BYTES:
            raise WorkerStreamError(f"it sent an event over {MAX_EVENT_BYTES} bytes")
        # One line is one event here: the dialect never splits JSON over several data lines. Comments
        # (keep-alive) and other fields are skipped.
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def read(self, event: bytes) -> dict[str, Any] | None:
        """Return the chunk of an event; None for the end of a complete answer.

        Raises WorkerStreamError, or WorkerRejectedError for an error that rejects the request itself,
        with the worker's own texts.
        """
        if event == b"[DONE]":
            if not self._finished or self._choices - self._finished:
                raise WorkerStreamError("it ended without a finish_reason")
            return None
        try:
            chunk = orjson.loads(event)
        except orjson.JSONDecodeError as failure:
            raise WorkerStreamError("it sent an event that is not JSON") from failure
        if not isinstance(chunk, dict):
            raise WorkerStreamError("it sent an event that is not an object")
        if chunk.get("error"):
            raise reported(chunk["error"])
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            self._choices.add(index)
            if choice.get("finish_reason") is not None:
                self._finished.add(index)
        return chunk


def reported(error: Any) -> WorkerStreamError | WorkerRejectedError:
    """Return the exception for an error object that a worker sent after status 200."""
    if isinstance(error, dict) and error.get("type") in _REJECTIONS:
        return WorkerRejectedError(400, error)
    message = str(error.get("message") if isinstance(error, dict) else error)
    # A draining worker returns its waiting calls with this code; they did not cause it.
    handed_back = isinstance(error, dict) and error.get("code") == "unavailable"
    cause: FailureCause = "busy" if handed_back else "failed"
    return WorkerStreamError(f"it reported: {message}", cause=cause, client_message=message)
