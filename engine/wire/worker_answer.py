"""Response of one worker that is a single JSON object: a stream with one chunk.

Weakness: the whole object is in memory, and parsing it holds the interpreter: on two busy cores 0.2 s
for 10 MB of numbers, half of that for base64.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import aiohttp
import orjson

from fairserve.engine.wire.base import (
    FailureCause,
    WorkerChunk,
    WorkerRejectedError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.stream_events import reported
from fairserve.engine.wire.upstream_message import is_about_our_account, public_message
from fairserve.engine.wire.worker_stream import describe

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer, such as 2,048 vectors of 1,500 numbers."""


class HttpWorkerAnswer:
    """The answer of status 200; see :class:`fairserve.engine.wire.base.WorkerStream`."""

    def __init__(
        self, response: aiohttp.ClientResponse, private: Collection[str], within_s: float | None
    ) -> None:
        """Read ``response`` within this time, if any; ``private`` as in ``HttpWorkerStream``."""
        self._response = response
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
            data = orjson.loads(bytes(body))
        except orjson.JSONDecodeError as failure:
            raise self._broken("its answer is not JSON", "failed") from failure
        if not isinstance(data, dict):
            raise self._broken("its answer is not an object", "failed")
        if data.get("error"):
            error = reported(data["error"])
            if isinstance(error, WorkerRejectedError):
                self._response.close()
                raise error
            raise self._broken(str(error), error.cause, error.client_message)
        self._response.release()
        return WorkerChunk(data)

    def close(self) -> None:
        """Close the connection, which cancels the call if it still runs."""
        self._response.close()

    def _broken(
        self, why: str, cause: FailureCause = "silent", message: str = ""
    ) -> WorkerUnavailableError:
        self._response.close()
        if is_about_our_account(message):
            cause, message = "unknown", ""
        client_message = public_message(message, self._private)
        return WorkerUnavailableError(why, cause=cause, client_message=client_message)
