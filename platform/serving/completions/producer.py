"""Write the answer of one call: as a stream of events, as one JSON object, or as an error.

A client needs a rejection as a status and the worker in a header, but also a keep-alive while its call
is queued. So the headers are sent with the first token, the whole answer or the final error, and for a
streaming call at the latest after the first keep-alive interval. Worker and queue time are then missing
from them, and a later error is an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.base.request_facts import add_error, add_facts
from fairserve.platform.serving.completions.answer import Sink, SlowClientError
from fairserve.platform.serving.completions.endpoint import AnswerWriter
from fairserve.platform.serving.completions.relay import Relay

logger = logging.getLogger(__name__)

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer to a call that failed before anything was sent."""

    status: int
    headers: dict[str, str]
    body: bytes


def error_answer(
    error: FairServeError, writer: AnswerWriter, headers: Mapping[str, str]
) -> ErrorAnswer:
    """Return the answer to a failed call; ``headers`` are those of the call."""
    body = orjson.dumps(writer.error_body(error))
    own = {name.lower(): value for name, value in error.headers.items()}
    known = {"content-type": JSON, **headers, **own, "content-length": str(len(body))}
    return ErrorAnswer(error.status, known, body)


def answer_headers(*, stream: bool) -> dict[str, str]:
    """Return the headers that answers of this kind share."""
    if not stream:
        return {"content-type": JSON}
    # The last header stops nginx and similar proxies from buffering the stream.
    return {
        "content-type": EVENT_STREAM,
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }


class Producer:
    """Produces one answer. ``succeeded`` is set once it is complete."""

    def __init__(self, relay: Relay, writer: AnswerWriter, keepalive_s: float) -> None:
        self._relay = relay
        self._writer = writer
        self._keepalive_s = keepalive_s
        self._started = False
        self.succeeded = False

    async def produce(self, sink: Sink) -> None:
        """Write the answer to ``sink``; raises nothing but cancellation and SlowClientError."""
        self._relay.why_left = lambda: sink.lost or "client disconnected"
        try:
            if self._relay.call.stream:
                await self._stream(sink)
            else:
                await self._whole(sink)
            self.succeeded = True
        except FairServeError as error:
            add_error(error)
            await self._fail(sink, error)
        except SlowClientError:
            raise
        except Exception:
            logger.exception("a call failed")
            await self._fail(sink, FairServeError("internal error"))
        finally:
            add_facts(**self._relay.facts())

    def _headers(self) -> dict[str, str]:
        return answer_headers(stream=self._relay.call.stream) | self._relay.headers()

    async def _start_stream(self, sink: Sink) -> None:
        if not self._started:
            self._started = True
            await sink.start(200, self._headers())
            if first := self._writer.begin():
                await sink.write(first)

    async def _stream(self, sink: Sink) -> None:
        waiting: asyncio.Task[None] | None = asyncio.create_task(self._keep_alive(sink))
        try:
            async with aclosing(self._relay.chunks()) as chunks:
                async for chunk in chunks:
                    if waiting is not None:
                        await _ended(waiting)
                        waiting = None
                        await self._start_stream(sink)
                    try:
                        event = self._writer.event(chunk)
                    except Exception as error:
                        self._relay.unwritten = error
                        raise
                    if event:
                        await sink.write(event)
        finally:
            if waiting is not None:
                await _ended(waiting)
        await self._start_stream(sink)
        await sink.write(await self._writer.end(self._relay.meter.answer()))

    async def _keep_alive(self, sink: Sink) -> None:
        while True:
            await asyncio.sleep(self._keepalive_s)
            await self._start_stream(sink)
            await sink.write(self._writer.keep_alive)

    async def _whole(self, sink: Sink) -> None:
        async with aclosing(self._relay.chunks()) as chunks:
            async for _ in chunks:
                pass
        merger = self._relay.merger
        assert merger is not None, "the relay merges what is not streamed"
        body = orjson.dumps(await self._writer.whole(merger, self._relay.meter.answer()))
        self._started = True
        await sink.start(200, self._headers() | {"content-length": str(len(body))})
        await sink.write(body)

    async def _fail(self, sink: Sink, error: FairServeError) -> None:
        if self._started:
            await sink.write(self._writer.error_event(error))
            return
        self._started = True
        answer = error_answer(error, self._writer, self._relay.headers())
        await sink.start(answer.status, answer.headers)
        await sink.write(answer.body)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it writes no more."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
