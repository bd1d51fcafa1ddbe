"""Events of one worker's response, parsed as they arrive.

The response is complete when ``[DONE]`` follows a ``finish_reason`` for every choice that was
begun. Some servers end the stream normally after they aborted a call (llama-cpp-python's, in which
a new call interrupts the running one): that is a broken response, not a short one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import aiohttp
import orjson

from fairserve.engine.wire.base import (
    FailureCause,
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.upstream_message import is_about_our_account, public_message

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Maximum size of a single event, which is held in memory; a longer one ends the stream."""
_REJECTIONS = frozenset({"invalid_request_error", "BadRequestError"})
"""Types of error events that reject the request itself, in our worker and in vLLM."""


class HttpWorkerStream:
    """Chunks of a response of status 200; see :class:`fairserve.engine.wire.base.WorkerStream`."""

    def __init__(self, response: aiohttp.ClientResponse, private: Collection[str] = ()) -> None:
        """Read ``response``; ``private`` are texts to remove from errors that a client sees."""
        self._response = response
        self._private = private
        self._content = response.content
        self._buffer = b""
        self._events: deque[bytes] = deque()
        self._begun = False
        self._choices: set[int] = set()
        self._finished: set[int] = set()

    def __aiter__(self) -> HttpWorkerStream:
        return self

    async def __anext__(self) -> WorkerChunk:
        while not self._events:
            try:
                received = await self._content.readany()
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                raise self._broken(describe(failure)) from failure
            if not received:
                raise self._broken("the connection ended without [DONE]")
            self._feed(received)
        raw = self._events.popleft()
        if raw == b"[DONE]":
            if not self._finished or self._choices - self._finished:
                raise self._broken("it ended without a finish_reason")
            # Returned to the pool only after its end: a worker that sends more is faulty.
            self._response.release()
            raise StopAsyncIteration
        try:
            data = orjson.loads(raw)
        except orjson.JSONDecodeError as failure:
            raise self._broken("it sent an event that is not JSON") from failure
        if not isinstance(data, dict):
            raise self._broken("it sent an event that is not an object")
        if data.get("error"):
            error = reported_error(data["error"])
            if isinstance(error, WorkerRejectedError):
                self._response.close()
                raise error
            raise self._broken(str(error), error.cause, error.client_message)
        self._begun = True
        for choice in data.get("choices") or ():
            index = choice.get("index", 0)
            self._choices.add(index)
            if choice.get("finish_reason") is not None:
                self._finished.add(index)
        return WorkerChunk(data)

    def close(self) -> None:
        """Close the connection, which cancels the call if it still runs."""
        self._response.close()

    def _feed(self, received: bytes) -> None:
        lines = (self._buffer + received).split(b"\n")
        self._buffer = lines.pop()
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise self._broken(f"it sent an event over {MAX_EVENT_BYTES} bytes")
        for line in lines:
            # One line is one event here: the dialect never splits JSON over several data lines.
            # Comments (keep-alive) and other fields are skipped.
            if line.startswith(b"data:"):
                self._events.append(line[5:].strip())

    def _broken(
        self, why: str, cause: FailureCause = "silent", message: str = ""
    ) -> WorkerStreamError | WorkerUnavailableError:
        """Close the stream and return its error; ``message`` is the worker's own if it sent one."""
        self._response.close()
        if is_about_our_account(message):
            cause, message = "unknown", ""
        client_message = public_message(message, self._private)
        error = WorkerStreamError if self._begun else WorkerUnavailableError
        return error(why, cause=cause, client_message=client_message)


def reported_error(error: Any) -> WorkerRejectedError | WorkerUnavailableError:
    """Return the exception of an error object that a worker sent after status 200, with its own text."""
    if isinstance(error, dict) and error.get("type") in _REJECTIONS:
        return WorkerRejectedError(400, error)
    message = str(error.get("message") if isinstance(error, dict) else error)
    # A draining worker returns its waiting calls with this code; they did not cause it.
    handed_back = isinstance(error, dict) and error.get("code") == "unavailable"
    cause: FailureCause = "busy" if handed_back else "failed"
    return WorkerUnavailableError(f"it reported: {message}", cause=cause, client_message=message)


def describe(failure: BaseException) -> str:
    """Return an exception as one line for a log."""
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
