"""Read a worker's answer from the bodies that the gateway sends, and write it for the client.

A reader takes the chunks as they arrive and returns the client's bytes: the answer under the call's id
and the model's public name, without the worker's running usage. The client sees the end of a complete
answer only after its end is recorded.

Weakness: an answer that is one object is in memory until it is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from fairserve.engine.wire.base import WorkerRejectedError, WorkerStreamError
from fairserve.engine.wire.stream_events import StreamEvents
from fairserve.engine.wire.tasks import TASK_OF_PATH
from fairserve.engine.wire.worker_answer import MAX_ANSWER_BYTES, read_whole
from fairserve.platform.picker.gateway_call import GatewayCall
from fairserve.platform.serving.completions.merge import Merger, WholeCompletion
from fairserve.platform.serving.completions.producer import JSON
from fairserve.platform.serving.decision.rejection import Rejection

logger = logging.getLogger(__name__)

MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error of the worker that are read."""


class AnswerReader(Protocol):
    """Reads the body of one answer."""

    rejection: Rejection | None
    """The error that takes the place of the whole answer, known at its end."""

    async def feed(self, received: bytes, *, end: bool) -> bytes:
        """Take a chunk, the last one if ``end``, and return what the client gets now."""
        ...


class StreamedAnswer:
    """Server-sent events."""

    rejection: Rejection | None = None
    """None: an error is an event."""

    def __init__(self, call: GatewayCall) -> None:
        self._call = call
        self._events = StreamEvents(call.sent.shape())

    async def feed(self, received: bytes, *, end: bool) -> bytes:
        """Take events; after the last one, or an error, the rest of the body is dropped."""
        call = self._call
        if call.ended:
            return b""
        written: list[bytes] = []
        try:
            found = self._events.feed(received)
            for event in found + self._events.flush() if end else found:
                chunk = self._events.read(event)
                if chunk is None:
                    written.append(await self._complete())
                    break
                call.read(chunk)
                written.append(call.event(chunk))
            if end and not call.ended:
                if not self._events.is_complete(needs_done=call.sent.needs_done):
                    raise WorkerStreamError("the answer ended without [DONE]")
                written.append(await self._complete())
        except (WorkerStreamError, WorkerRejectedError) as error:
            written.append(await self.failed(error))
        except Exception as error:
            logger.exception("an answer cannot be read")
            broken = WorkerStreamError(f"internal error: {type(error).__name__}")
            written.append(await self.failed(broken))
        call.renew()
        return b"".join(written)

    async def _complete(self) -> bytes:
        await self._call.complete()
        return await self._call.writer.end(self._call.meter.answer())

    async def failed(self, error: WorkerStreamError | WorkerRejectedError) -> bytes:
        """End the call, and return the event of its error. No ``[DONE]`` follows."""
        rejection = await self._call.fail(error)
        return self._call.writer.error_event(rejection.error)


class WholeAnswer:
    """One JSON object. A client that wanted a stream gets it, too: it is what the worker sent."""

    def __init__(self, call: GatewayCall) -> None:
        self._call = call
        self._body = bytearray()
        self.rejection: Rejection | None = None

    async def feed(self, received: bytes, *, end: bool) -> bytes:
        """Collect the object; return it with the call's id and the model's public name at its end."""
        call = self._call
        if call.ended:
            return b""
        self._body += received
        try:
            if len(self._body) > MAX_ANSWER_BYTES:
                raise WorkerStreamError(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
            if not end:
                call.renew()
                return b""
            data = read_whole(bytes(self._body), call.sent.shape())
            call.read(data)
            written, merger = self._written(data)
        except (WorkerStreamError, WorkerRejectedError) as error:
            self.rejection = await call.fail(error)
            return orjson.dumps(call.writer.error_body(self.rejection.error))
        await call.complete(merger)
        return orjson.dumps(written)

    def _written(self, data: dict[str, Any]) -> tuple[dict[str, Any], Merger]:
        """Return the client's object and the messages in it. Raises WorkerStreamError."""
        call = self._call.call
        generates = TASK_OF_PATH[call.path] == "generate"
        merger = WholeCompletion() if generates else call.merger()
        merger.add(data)
        usage = self._call.meter.answer()
        return merger.answer(call.answer_id, call.checked.answer_name, usage), merger


class FailedAnswer:
    """The body of an answer with another status than 200; the client gets our error instead."""

    def __init__(self, call: GatewayCall, status: int, headers: Mapping[str, str]) -> None:
        self._call = call
        self._status, self._headers = status, headers
        self._body = bytearray()
        self.rejection: Rejection | None = None

    async def feed(self, received: bytes, *, end: bool) -> bytes:
        """Collect the worker's error; return the client's at its end."""
        call = self._call
        self._body += received[: MAX_ERROR_BYTES - len(self._body)]
        if not end or call.ended:
            return b""
        # The gateway's own error pages name addresses; only a worker's JSON has a reason.
        reason = bytes(self._body) if JSON in self._headers.get("content-type", "") else b""
        error = call.sent.failure(self._status, self._headers, reason)
        self.rejection = await call.fail(error)
        return orjson.dumps(call.writer.error_body(self.rejection.error))
