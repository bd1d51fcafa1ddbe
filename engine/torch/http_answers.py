"""A worker's HTTP responses: a stream of events, a whole response, an error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairserve.engine.torch.events import Admitted, Generated
from fairserve.engine.torch.openai_request import GenerationRequest
from fairserve.engine.torch.openai_response import AnswerWriter
from fairserve.engine.torch.running_call import RunningCall

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

    def __init__(self, call: RunningCall, writer: AnswerWriter, wanted: GenerationRequest) -> None:
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


async def whole_answer(call: RunningCall, writer: AnswerWriter, receive: Receive) -> Response:
    """Return the response to a call that is not streamed; a disconnecting client cancels the call."""

    async def collect() -> None:
        while not call.is_over:
            for event in await call.arrivals():
                call.apply(event)

    try:
        if not await _unless_disconnected(collect(), receive):
            return Response(status_code=499)
    finally:
        call.close()
    if call.handed_back:
        return unavailable(DRAINING)
    if call.error is not None:
        return JsonResponse(_call_error(call), status_code=400 if call.rejected else 500)
    return JsonResponse(writer.whole())


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


def _call_error(call: RunningCall) -> dict[str, Any]:
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
