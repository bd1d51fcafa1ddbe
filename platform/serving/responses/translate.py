"""Translate a request for a response into the fields of a chat call.

The chat call's own reader validates the fields, finds the workers that honour them and counts the
prompt, so a response costs and means what the chat call does. Errors name the fields of the response:
:class:`ResponsesChatFields` knows where each message comes from.

Departures: developer messages become system messages, which every chat template has. Reasoning of
earlier turns is omitted, as chat templates omit it; that of the present turn is passed to workers that
take it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from fairserve.engine.wire.request_fields import FieldDemand
from fairserve.platform.base.errors import FairServeError, InvalidRequestError
from fairserve.platform.serving.completions.requests import CHAT, CompletionRequest, read_fields
from fairserve.platform.serving.completions.schemas import SamplingFields
from fairserve.platform.serving.responses.items import Item
from fairserve.platform.serving.responses.schemas import ResponseBody, TextFormat

_FIELDS = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "messages": "input",
}
_MESSAGE = re.compile(r"messages\[(\d+)\]")
_SAME = (
    "temperature",
    "top_p",
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
    *SamplingFields.model_fields,
)


@dataclass(frozen=True, slots=True)
class ResponsesChatFields:
    """The fields of a chat call, and where they come from."""

    plain: dict[str, Any]
    sources: Sequence[str]
    """Fields of the request that the messages come from, such as ``input[2]``."""

    def read(self) -> CompletionRequest:
        """Return the chat request. Raises InvalidRequestError naming a field of the response."""
        try:
            request = read_fields(CHAT, self.plain)
        except InvalidRequestError as error:
            self.rename(error)
            raise
        demands = request.demands
        demands[:] = [
            FieldDemand(self.name(demand.field), demand.kinds)
            for demand in demands
            if not demand.field.endswith(".reasoning")
        ]
        return request

    def rename(self, error: FairServeError) -> None:
        """Change an error about a field of the chat call to one about the field of the response."""
        if error.param is not None:
            field = self.name(error.param)
            error.message = error.message.replace(error.param, field)
            error.param = field

    def name(self, field: str) -> str:
        """Return the name of the response's field for a field of the chat call."""
        found = _MESSAGE.match(field)
        if found is not None and int(found[1]) < len(self.sources):
            rest = field[found.end() :].removesuffix(".tool_calls").removesuffix(".tool_call_id")
            return self.sources[int(found[1])] + rest
        head = re.split(r"[.\[]", field, maxsplit=1)[0]
        rest = field[len(head) :].replace(".json_schema", "").replace(".function", "")
        return _FIELDS.get(head, head) + rest


def chat_fields(
    body: ResponseBody, earlier: Sequence[Item], items: Sequence[Item]
) -> ResponsesChatFields:
    """Return the fields of the chat call. ``earlier`` are the items that the request continues."""
    messages = _Messages()
    if body.instructions is not None:
        messages.add({"role": "system", "content": body.instructions}, "instructions")
    source = "previous_response_id" if body.conversation_id is None else "conversation"
    messages.read(earlier, lambda _: source)
    messages.read(items, lambda number: f"input[{number}]")
    plain: dict[str, Any] = {"model": body.model, "messages": messages.all()}
    for name in _SAME:
        if (value := getattr(body, name)) is not None:
            if isinstance(value, BaseModel):
                value = value.model_dump(by_alias=True, exclude_unset=True)
            plain[name] = value
    if body.max_output_tokens is not None:
        plain["max_completion_tokens"] = body.max_output_tokens
    if body.stream or body.background:
        plain["stream"] = True
    if body.wants_logprobs:
        plain |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.reasoning is not None and body.reasoning.effort is not None:
        plain["reasoning_effort"] = body.reasoning.effort
    if body.text is not None:
        if body.text.verbosity is not None:
            plain["verbosity"] = body.text.verbosity
        if body.text.format is not None:
            plain |= _response_format(body.text.format)
    return ResponsesChatFields(plain | _tools(body), messages.sources)


def _response_format(wanted: TextFormat) -> dict[str, Any]:
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = wanted.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tools(body: ResponseBody) -> dict[str, Any]:
    if not body.tools:
        return {}
    plain: dict[str, Any] = {
        "tools": [
            {
                "type": "function",
                "function": tool.model_dump(exclude={"type"}, exclude_none=True),
            }
            for tool in body.tools
        ]
    }
    choice = body.tool_choice
    if isinstance(choice, str):
        plain["tool_choice"] = choice
    elif choice is not None:
        plain["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    if body.parallel_tool_calls is not None:
        plain["parallel_tool_calls"] = body.parallel_tool_calls
    return plain


class _Messages:
    """Builds chat messages from items: what the model said in one turn becomes one message."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self.sources: list[str] = []
        self._turn: dict[str, Any] | None = None
        self._turn_source = ""

    def add(self, message: dict[str, Any], source: str) -> None:
        self._end_turn()
        self._messages.append(message)
        self.sources.append(source)

    def read(self, items: Iterable[Item], source: Any) -> None:
        for number, item in enumerate(items):
            self._read(item, source(number))

    def all(self) -> list[dict[str, Any]]:
        """Return the messages, with reasoning only after the last one of the user."""
        self._end_turn()
        users = [number for number, each in enumerate(self._messages) if each["role"] == "user"]
        for message in self._messages[: users[-1]] if users else ():
            message.pop("reasoning", None)
        return self._messages

    def _read(self, item: Item, source: str) -> None:
        kind = item["type"]
        if kind == "function_call_output":
            output = item["output"]
            text = output if isinstance(output, str) else "".join(part["text"] for part in output)
            message = {"role": "tool", "tool_call_id": item["call_id"], "content": text}
            self.add(message, source)
        elif kind == "message" and item["role"] != "assistant":
            role = "user" if item["role"] == "user" else "system"
            self.add({"role": role, "content": _content(item["content"])}, source)
        else:
            self._read_answer(item, source)

    def _read_answer(self, item: Item, source: str) -> None:
        """Add an item of the model's: its reasoning, then a text, then calls of functions."""
        kind, turn = item["type"], self._turn
        if turn is not None and (
            (kind == "message" and (turn["content"] is not None or "tool_calls" in turn))
            or (kind == "reasoning" and (turn["content"] is not None or "tool_calls" in turn))
        ):
            self._end_turn()
        if self._turn is None:
            self._turn = {"role": "assistant", "content": None}
            self._turn_source = source
        if kind == "message":
            for name in ("text", "refusal"):
                text = "".join(part.get(name, "") for part in item["content"])
                if name == "text":
                    self._turn["content"] = text
                elif text:
                    self._turn["refusal"] = text
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            self._turn.setdefault("tool_calls", []).append(call)
        else:
            text = "".join(part["text"] for part in item.get("content") or ())
            if text:
                self._turn["reasoning"] = self._turn.get("reasoning", "") + text

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and (turn["content"] is not None or "tool_calls" in turn):
            self._messages.append(turn)
            self.sources.append(self._turn_source)


def _content(parts: Sequence[Item]) -> str | list[dict[str, Any]]:
    """Return the content of a message: a text where it is one text, which every template takes."""
    if len(parts) == 1 and parts[0]["type"] == "input_text":
        text: str = parts[0]["text"]
        return text
    return [_part(part) for part in parts]


def _part(part: Item) -> dict[str, Any]:
    if part["type"] == "input_text":
        return {"type": "text", "text": part["text"]}
    return {
        "type": "image_url",
        "image_url": {"url": part["image_url"], "detail": part["detail"]},
    }
