"""A worker's HTTP responses: a stream of events, a whole response, an error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairserve.engine.torch.events import Admitted, Generated
from fairserve.engine.torch.openai.request import GenerationRequest
from fairserve.engine.torch.openai.response import EngineAnswerWriter
from fairserve.engine.torch.running_call import EngineCall

DRAINING = "the worker is draining"
INVALID_REQUEST = "invalid_request_error"
_UNAVAILABLE = ("unavailable_error", None, "unavailable")


class JsonResponse(Response):
    """Response of a value as JSON, by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialise the value."""
        return orjson.dumps(content)


class EventStream(Response):
    """Streamed response as server-sent events."""

    def __init__(
        self, call: EngineCall, writer: EngineAnswerWriter, wanted: GenerationRequest
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._call = call
        self._writer = writer
        self._wanted = wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write chunks as they arrive; a client that disconnects cancels the call."""
        try:
            await _unless_disconnected(self._write(send), receive)
        finally:
            self._call.close()

    async def _write(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        while not self._call.is_over:
            chunks = await self._next_chunks()
            if chunks:
                body = b"".join(map(_sse, chunks))
                await send({"type": "http.response.body", "body": body, "more_body": True})
        last: list[dict[str, Any]] = []
        if self._call.error is not None:
            last.append(_call_error(self._call))
        elif self._wanted.include_usage:
            last.append(self._writer.final_usage())
        # When a client reads the end of the stream, the call is already removed from the worker.
        self._call.close()
        body = b"".join(map(_sse, last)) + b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _next_chunks(self) -> list[dict[str, Any]]:
        usage = self._wanted.continuous_usage
        chunks = []
        for event in await self._call.arrivals():
            index = self._call.apply(event)
            if isinstance(event, Admitted):
                chunks.append(self._writer.admitted(index, usage))
            elif isinstance(event, Generated) and (
                event.text or event.finish_reason or event.logprobs or usage
            ):
                chunks.append(self._writer.delta(index, event, usage))
                # They are sent; only a whole response needs all of them.
                self._call.outputs[index].logprobs.clear()
        return chunks


class WholeAnswer(Response):
    """Response to a call that is not streamed; a client that disconnects cancels the call.

    With ``early_head`` the header is sent when the first sample enters the batch: a platform learns
    from it that the call has started. An error after that is the body of status 200.
    """

    media_type = "application/json"

    def __init__(self, call: EngineCall, writer: EngineAnswerWriter, *, early_head: bool) -> None:
        super().__init__()
        self._call = call
        self._writer = writer
        self._early_head = early_head
        self._head_sent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Collect the output, then write the answer."""
        try:
            if not await _unless_disconnected(self._collect(send), receive):
                return
        finally:
            self._call.close()
        response = self._response()
        if not self._head_sent:
            await response(scope, receive, send)
            return
        await send({"type": "http.response.body", "body": response.body, "more_body": False})

    async def _collect(self, send: Send) -> None:
        call = self._call
        while not call.is_over:
            for event in await call.arrivals():
                call.apply(event)
            if self._early_head and not self._head_sent and call.has_started and not call.is_over:
                self._head_sent = True
                headers = [(b"content-type", b"application/json")]
                start = {"type": "http.response.start", "status": 200, "headers": headers}
                await send(start)
                # An empty part of the body, because a server may keep the head until the first one.
                await send({"type": "http.response.body", "body": b"", "more_body": True})

    def _response(self) -> Response:
        call = self._call
        if call.handed_back and not self._head_sent:
            return unavailable(DRAINING)
        if call.error is not None:
            return JsonResponse(_call_error(call), status_code=400 if call.rejected else 500)
        return JsonResponse(self._writer.whole())


async def _unless_disconnected(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Run ``work`` to its end. If the client disconnects first, cancel it and return False."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.create_task(work)
    leaving = asyncio.create_task(disconnected())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _error_body(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_answer(status: int, message: str, kind: str, param: str | None, code: str) -> Response:
    """Return an error in OpenAI's format."""
    return JsonResponse(_error_body(message, kind, param, code), status_code=status)


def _call_error(call: EngineCall) -> dict[str, Any]:
    """Return the error of a call that ended without a response."""
    message = call.error or ""
    if call.handed_back:
        return _error_body(message, *_UNAVAILABLE)
    if call.rejected:
        return _error_body(message, INVALID_REQUEST, "response_format", "schema_not_followed")
    return _error_body(message, "server_error", None, "engine_error")


def busy(message: str) -> Response:
    """Return 429: the worker is healthy, and can take the call a little later."""
    response = error_answer(429, message, "rate_limit_error", None, "worker_busy")
    response.headers["retry-after"] = "1"
    return response


def unavailable(message: str) -> Response:
    """Return 503: another worker may take the call, or this one later."""
    response = error_answer(503, message, *_UNAVAILABLE)
    response.headers["retry-after"] = "1"
    return response
