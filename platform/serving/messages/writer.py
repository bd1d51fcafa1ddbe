"""Write a chat answer in Anthropic's format: as the events of a stream, or as one message.

A message is a list of blocks: thinking, text, and uses of tools. In a stream each block starts,
grows and stops before the next one starts. Workers send the parts of an answer in this order, and a
tool call's parts one after another; parts of a call that has stopped end the stream with an error.

Weakness: ``message_start`` is sent before the worker reports; its usage is the platform's count of the
prompt, and the last ``message_delta`` has the worker's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from fairserve.engine.wire.base import WorkerChunk
from fairserve.interactions.call import ServiceTier
from fairserve.platform.base.errors import FairServeError, WorkerFailedError
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.messages.errors import error_body

ID_PREFIX = "msg_"
INVALID_JSON = "INVALID_JSON"
"""Name under which arguments that are no JSON object are sent, as Anthropic's clients do."""
_STOP_REASONS = {
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
_TIERS: Mapping[ServiceTier, str] = {
    "default": "standard",
    "flex": "batch",
    "priority": "priority",
}
"""Values of a message's ``usage.service_tier``."""
_THINKING = ("reasoning", "reasoning_content")
"""Names of a delta's thinking, newest first; some workers send both."""
_TEXTS = ("content", "refusal")


class MessageWriter:
    """Writes the answer of one call."""

    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, checked: CheckedCall, *, show_thinking: bool = True) -> None:
        """Without ``show_thinking`` the answer has no blocks with thinking."""
        self._id = ID_PREFIX + checked.call_id
        self._model = checked.answer_name
        self._prompt_tokens = checked.call.prompt_tokens
        self._tier = _TIERS[checked.call.tier]
        self._show_thinking = show_thinking
        self._blocks = 0
        """Number of blocks that have started."""
        self._open: str | int | None = None
        """Kind of the block that is open, or the index of its tool call."""
        self._has_tools = False
        self._end = _End()

    # --- streams ----------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Return the start of the message."""
        usage = {
            "input_tokens": self._prompt_tokens,
            "output_tokens": 0,
            "service_tier": self._tier,
        }
        return _event("message_start", message=self._message([], usage))

    def event(self, chunk: WorkerChunk) -> bytes:
        """Return the events of a chunk."""
        return b"".join(event for choice in chunk.data["choices"] for event in self._choice(choice))

    async def end(self, usage: dict[str, Any]) -> bytes:
        """Return the end of a complete message."""
        delta = self._end.fields(self._has_tools)
        return (
            b"".join(self._stop())
            + _event("message_delta", delta=delta, usage=_usage(usage))
            + _event("message_stop")
        )

    def error_event(self, error: FairServeError) -> bytes:
        """Return the event of an error."""
        return b"event: error\ndata: " + orjson.dumps(error_body(error)) + b"\n\n"

    def _choice(self, choice: dict[str, Any]) -> Iterator[bytes]:
        delta = choice["delta"]
        if (thinking := _first(delta, _THINKING)) and self._show_thinking:
            yield from self._start(
                "thinking", {"type": "thinking", "thinking": "", "signature": ""}
            )
            yield self._delta({"type": "thinking_delta", "thinking": thinking})
        for name in _TEXTS:
            if text := delta.get(name):
                yield from self._start("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
        for part in delta.get("tool_calls") or ():
            yield from self._tool_part(part)
        self._end.read(choice, refused=bool(delta.get("refusal")))

    def _tool_part(self, part: dict[str, Any]) -> Iterator[bytes]:
        """Write a part of a tool call: the first one has its name, and begins its block."""
        index, function = part["index"], part["function"]
        if "name" in function:
            self._has_tools = True
            call_id = part.get("id") or self._tool_id(index)
            block = {"type": "tool_use", "id": call_id, "name": function["name"], "input": {}}
            yield from self._start(index, block)
        if arguments := function["arguments"]:
            if self._open != index:
                raise WorkerFailedError("the worker mixed the parts of several tool calls")
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _tool_id(self, index: int) -> str:
        """Return the id of a tool call to which the worker gave none."""
        return f"toolu_{self._id}_{index}"

    def _start(self, kind: str | int, block: dict[str, Any]) -> Iterator[bytes]:
        """Start a block, unless the open one is of its kind."""
        if self._open == kind:
            return
        yield from self._stop()
        self._open = kind
        self._blocks += 1
        yield _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _stop(self) -> Iterator[bytes]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._blocks - 1)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    # --- whole answers ----------------------------------------------------------------------------

    async def whole(self, merger: Merger, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the message."""
        choice = merger.answer(self._id, self._model, usage)["choices"][0]
        message = choice["message"]
        blocks: list[dict[str, Any]] = []
        if (thinking := _first(message, _THINKING)) and self._show_thinking:
            blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
        blocks += [{"type": "text", "text": message[name]} for name in _TEXTS if message.get(name)]
        for index, part in enumerate(message.get("tool_calls") or ()):
            function, call_id = part["function"], part.get("id") or self._tool_id(index)
            block = {"type": "tool_use", "id": call_id, "name": function["name"]}
            blocks.append(block | {"input": _input(function["arguments"])})
        self._end.read(choice, refused=bool(message.get("refusal")))
        fields = self._end.fields(bool(message.get("tool_calls")))
        return self._message(blocks, _usage(usage) | {"service_tier": self._tier}) | fields

    def error_body(self, error: FairServeError) -> dict[str, Any]:
        """Return the body of an error."""
        return error_body(error)

    def _message(self, blocks: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


class _End:
    """Reason for which the answer ended."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._sequence: str | None = None
        self._refused = False

    def read(self, choice: dict[str, Any], *, refused: bool) -> None:
        """Read the end of a choice, if it has one. Workers may name the stop string."""
        self._refused |= refused
        self._reason = choice.get("finish_reason") or self._reason
        if isinstance(sequence := choice.get("stop_reason"), str):
            self._sequence = sequence

    def fields(self, has_tools: bool) -> dict[str, Any]:
        """Return ``stop_reason`` and ``stop_sequence``."""
        reason = _STOP_REASONS.get(self._reason or "", "end_turn")
        if self._refused:
            reason = "refusal"
        elif reason == "end_turn" and has_tools:  # of a tool that the client chose
            reason = "tool_use"
        elif reason == "end_turn" and self._sequence is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": self._sequence}
        return {"stop_reason": reason, "stop_sequence": None}


def _input(arguments: str) -> dict[str, Any]:
    """Return a tool call's arguments as an object; a cut-off answer may have a part of one."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    """Return a usage in Anthropic's terms: input tokens are those that were not cached."""
    prompt_tokens = usage.get("prompt_tokens") or 0
    details = usage.get("prompt_tokens_details") or {}
    cached_tokens = min(details.get("cached_tokens") or 0, prompt_tokens)
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def _first(values: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first text of these names that is not empty."""
    return next((value for name in names if (value := values.get(name))), None)


def _event(name: str, **fields: Any) -> bytes:
    data = orjson.dumps({"type": name, **fields})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
