"""Write the answer of a call as a response: as typed events, or as one object.

Events have the order and the types of OpenAI's, and are numbered. A complete response is stored before
its client sees the end. A response that cannot be stored because the database is down is delivered
with ``store`` false, for the answer is complete and paid for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from fairserve.engine.wire.base import WorkerChunk
from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.openai_endpoint import KEEP_ALIVE
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.responses.output import Event, ResponseOutput
from fairserve.platform.serving.responses.schemas import ResponseBody
from fairserve.platform.serving.responses.translate import ResponsesChatFields

Response = dict[str, Any]
Store = Callable[[CheckedCall, Response], Awaitable[bool]]
"""Stores a response; returns whether it is stored."""


class ResponseWriter:
    """Writes one response. ``store`` is None where nothing of it is stored; ``stored`` is its field."""

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        checked: CheckedCall,
        body: ResponseBody,
        chat: ResponsesChatFields,
        store: Store | None,
        *,
        stored: bool,
    ) -> None:
        self.checked = checked
        self._chat = chat
        self._store = store
        self._background = bool(body.background)
        self._output = ResponseOutput(checked.record_id)
        self._number = 0
        self._head = _head(checked, body, stored=stored)
        self.started = False
        self.error: FairServeError | None = None
        """Error that ended the call."""

    # --- AnswerWriter -----------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Return the first events."""
        status = "queued" if self._background else "in_progress"
        created = self.response(status)
        return b"".join(
            self._event({"type": f"response.{kind}", "response": created})
            for kind in ("created", status)
        )

    def event(self, chunk: WorkerChunk) -> bytes:
        """Return the events of a chunk."""
        events = list(self._output.add(chunk.data))
        if not self.started:
            self.started = True
            if self._background:
                working = {"type": "response.in_progress", "response": self.response("in_progress")}
                events.insert(0, working)
        return b"".join(map(self._event, events))

    async def end(self, usage: dict[str, Any]) -> bytes:
        """Store the response, and return the last events."""
        last = b"".join(map(self._event, self._output.end()))
        response = await self._complete(usage)
        return last + self._event({"type": f"response.{response['status']}", "response": response})

    async def whole(self, merger: Merger, usage: dict[str, Any]) -> Response:
        """Store the response, and return it."""
        answer = merger.answer("", "", usage)
        for choice in answer["choices"]:
            delta = choice.pop("message", {})
            for number, each in enumerate(delta.get("tool_calls") or ()):
                each["index"] = number
            list(self._output.add({"choices": [choice | {"delta": delta}]}))
        list(self._output.end())
        return await self._complete(usage)

    def error_event(self, error: FairServeError) -> bytes:
        """Return the event of a response that failed."""
        return self._event({"type": "response.failed", "response": self.failed(error)})

    def error_body(self, error: FairServeError) -> dict[str, Any]:
        """Return the body of an answer that is an error."""
        self.error = error
        self._chat.rename(error)
        return error.body()

    # --- responses --------------------------------------------------------------------------------

    def response(self, status: str) -> Response:
        """Return the response as it is now."""
        return self._head | {"status": status, "output": list(self._output.items)}

    def failed(self, error: FairServeError) -> Response:
        """Return the response that an error ended."""
        self.error = error
        self._chat.rename(error)
        return self.response("failed") | {"error": failure(error)}

    async def _complete(self, usage: dict[str, Any]) -> Response:
        reason = self._output.incomplete_reason
        response = self.response("incomplete" if reason else "completed")
        response["usage"] = _usage(usage)
        if reason:
            response["incomplete_details"] = {"reason": reason}
        else:
            response["completed_at"] = int(utc_s())
        if self._store is not None and not await self._store(self.checked, response):
            response["store"] = False
        return response

    def _event(self, event: Event) -> bytes:
        numbered = {"type": event["type"], "sequence_number": self._number, **event}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), orjson.dumps(numbered))


def failure(error: FairServeError) -> dict[str, str]:
    """Return the ``error`` of a failed response: one of OpenAI's codes, and our message."""
    codes = {429: "rate_limit_exceeded", 400: "invalid_prompt", 413: "invalid_prompt"}
    return {"code": codes.get(error.status, "server_error"), "message": error.message}


def _head(checked: CheckedCall, body: ResponseBody, *, stored: bool) -> Response:
    """Return the fields that do not change, and those of the end while they are unknown."""
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    reasoning = body.reasoning.effort if body.reasoning else None
    tools = [
        {"parameters": None, "strict": None, **tool.model_dump(exclude_none=True)}
        for tool in body.tools or ()
    ]
    choice = body.tool_choice or "auto"
    conversation = body.conversation_id
    return {
        "id": response_id(checked.record_id),
        "object": "response",
        "created_at": int(utc_s()),
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": checked.answer_name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "conversation": None if conversation is None else {"id": conversation},
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": checked.call.tier,
        "store": stored,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def response_id(record_id: str) -> str:
    """Return the id of the response of a call, which may be named as a parent."""
    return f"resp_{record_id}"


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return a chat call's usage in the shape of a response's."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    input_tokens, output_tokens = usage["prompt_tokens"], usage.get("completion_tokens") or 0
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_tokens + output_tokens,
    }
