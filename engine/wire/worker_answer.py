"""Response of one worker that is a single JSON object: a stream with one chunk.

Weakness: the whole object is in memory, and parsing it holds the interpreter: on two busy cores 0.2 s
for 10 MB of numbers, half of that for base64.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import aiohttp

from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.base import (
    FailureCause,
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.stream_events import raise_reported
from fairserve.engine.wire.upstream_message import public_message, public_rejection
from fairserve.engine.wire.worker_json import parse_object
from fairserve.engine.wire.worker_stream import describe

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer, such as 2,048 vectors of 1,500 numbers."""


class HttpWorkerAnswer:
    """The answer of status 200; see :class:`fairserve.engine.wire.base.WorkerStream`."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        shape: AnswerShape,
        private: Collection[str],
        within_s: float | None,
    ) -> None:
        """Read ``response`` within this time, if any; the others as in ``HttpWorkerStream``."""
        self._response = response
        self._shape = shape
        self._private = private
        self._within_s = within_s
        self._read = False

    def __aiter__(self) -> HttpWorkerAnswer:
        return self

    async def __anext__(self) -> WorkerChunk:
        if self._read:
            raise StopAsyncIteration
        self._read = True
        body = bytearray()
        try:
            async with asyncio.timeout(self._within_s):
                async for part in self._response.content.iter_any():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        text = f"its answer is longer than {MAX_ANSWER_BYTES} bytes"
                        raise self._broken(text, "failed", text)
        except TimeoutError as failure:
            raise self._broken(f"its answer took over {self._within_s:g} s") from failure
        except (aiohttp.ClientError, OSError) as failure:
            raise self._broken(describe(failure)) from failure
        try:
            data = read_whole(bytes(body), self._shape)
        except WorkerRejectedError as error:
            self._response.close()
            raise public_rejection(error, self._private) from error
        except WorkerStreamError as error:
            raise self._broken(str(error), error.cause, error.client_message) from error
        self._response.release()
        return WorkerChunk(data)

    def close(self) -> None:
        """Close the connection, which cancels the call if it still runs."""
        self._response.close()

    def _broken(
        self, why: str, cause: FailureCause = "silent", message: str = ""
    ) -> WorkerUnavailableError:
        self._response.close()
        client_message = public_message(message, self._private)
        return WorkerUnavailableError(why, cause=cause, client_message=client_message)


def read_whole(body: bytes, shape: AnswerShape) -> dict[str, Any]:
    """Return the checked answer. Raises WorkerStreamError or WorkerRejectedError."""
    data = parse_object(body, "its answer")
    raise_reported(data)
    shape.check_whole(data)
    return data
