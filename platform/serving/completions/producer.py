"""Write the answer of one call: as a stream of events, as one JSON object, or as an error.

A client needs a rejection as a status and the worker in a header, but also a keep-alive while its call
is queued. So the headers are sent with the first token, the whole answer or the final error, and for a
streaming call at the latest after the first keep-alive interval. Worker and queue time are then missing
from them, and a later error is an event. A stream may be silent later, too: thinking that its client
does not want, the arguments of a tool that the worker sends at once, a call that its worker interrupts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from fairserve.platform.base.errors import FairServeError
from fairserve.platform.base.request_facts import add_error, add_facts
from fairserve.platform.serving.completions.answer import Sink
from fairserve.platform.serving.completions.endpoint import AnswerWriter
from fairserve.platform.serving.completions.relay import Nobody, Relay

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


def _nothing() -> None:
    """Do nothing."""


class Producer:
    """Produces one answer. ``succeeded`` is set once it is complete."""

    def __init__(self, relay: Relay, keepalive_s: float) -> None:
        """``relay`` carries a call that has a writer; this becomes its reader."""
        self._relay = relay
        self._call = relay.call
        assert relay.call.writer is not None, "what is produced is written"
        self._writer: AnswerWriter = relay.call.writer
        self._keepalive_s = keepalive_s
        self._sink: Sink | None = None
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._is_silent = True
        """True if nothing was written since the timer was set."""
        self._started = False
        self.succeeded = False
        relay.reader = self

    async def produce(self, sink: Sink) -> None:
        """Write the answer to ``sink``; raises nothing but cancellation."""
        self._sink = sink
        sink.on_space = lambda: self.on_space()
        try:
            if self._call.streams:
                self._later_alive()
            await self._relay.carry()
            await self._end(sink)
            self.succeeded = True
        except FairServeError as error:
            add_error(error)
            self._fail(sink, error)
        except Exception:
            logger.exception("a call failed")
            self._fail(sink, FairServeError("internal error"))
        finally:
            self._stop_alive()
            add_facts(**self._call.facts())
            self._let_go(sink)

    def _let_go(self, sink: Sink) -> None:
        """Break the cycles of references, or the whole call waits for a collection of garbage.

        A call that waited long is freed by a collection of all objects only, which is rare.
        """
        self._sink, self._relay.reader = None, Nobody()
        sink.on_space = _nothing

    async def _end(self, sink: Sink) -> None:
        """Write the end of a stream, or the whole answer."""
        usage = self._call.meter.shown(self._call.used)
        if self._call.streams:
            self._stop_alive()
            end = await self._writer.end(usage)
            self._start_stream(sink)
            sink.write(end)
            return
        merger = self._call.merger
        assert merger is not None, "what is not streamed is merged"
        body = orjson.dumps(await self._writer.whole(merger, usage))
        self._started = True
        sink.whole(200, self._headers() | {"content-length": str(len(body))}, body)

    def _headers(self) -> dict[str, str]:
        return answer_headers(stream=self._call.streams) | self._relay.headers()

    def _start_stream(self, sink: Sink) -> None:
        if not self._started:
            self._started = True
            sink.start(200, self._headers())
            if first := self._call.begin():
                sink.write(first)

    # --- the reader of the call -------------------------------------------------------------------

    on_space: Callable[[], None] = staticmethod(_nothing)

    @property
    def lost(self) -> str:
        """Reason for which the client is gone."""
        return "" if self._sink is None else self._sink.lost

    @property
    def is_full(self) -> bool:
        """True while the client lags."""
        return self._sink is not None and self._sink.is_full

    def write(self, body: bytes) -> None:
        """Write events."""
        assert self._sink is not None
        self._is_silent = False
        if not self._started:
            self._start_stream(self._sink)
        self._sink.write(body)

    # --- keep-alive -------------------------------------------------------------------------------

    def _later_alive(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_silent = True
        self._keep_alive_timer = loop.call_later(self._keepalive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        assert self._sink is not None
        if self._is_silent and not self._sink.is_full:
            self._start_stream(self._sink)
            self._sink.write(self._writer.keep_alive)
        self._later_alive()

    def _stop_alive(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None

    def _fail(self, sink: Sink, error: FairServeError) -> None:
        self._stop_alive()
        if self._started:
            sink.write(self._writer.error_event(error))
            return
        self._started = True
        answer = error_answer(error, self._writer, self._relay.headers())
        sink.whole(answer.status, answer.headers, answer.body)
