"""Validate the items of an input, and complete them to the form in which they are stored.

Items are messages, function calls, their outputs, reasoning, and references to stored items. Every item
that the platform stores has an id that leads to the stored response that has it: ``msg_<call>_3`` is the
item 3 of the output, and ``msg_<call>_i3`` that of the input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fairserve.engine.wire.request_fields import shown
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.db.base import new_id
from fairserve.platform.serving.body_part import MessagePart
from fairserve.platform.serving.completions.schemas import NonEmpty, invalid
from fairserve.platform.serving.responses.schemas import Reference

Item = dict[str, Any]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]

MAX_ITEMS = 10_000
"""Items of one request."""
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
_STORED_ID = re.compile(r"(?:msg|fc|fco|rs)_(call_[0-9a-f]{32})_(i?)(\d{1,6})")

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class _Stored(MessagePart):
    id: Reference | None = None
    status: ItemStatus | None = None


class _Message(_Stored):
    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Objects


class _FunctionCall(_Stored):
    type: Literal["function_call"]
    call_id: NonEmpty
    name: NonEmpty
    arguments: str


class _FunctionCallOutput(_Stored):
    type: Literal["function_call_output"]
    call_id: NonEmpty
    output: str | Objects


class _ReasoningText(MessagePart):
    type: Literal["reasoning_text"]
    text: str


class _SummaryText(MessagePart):
    type: Literal["summary_text"]
    text: str


class _Reasoning(_Stored):
    type: Literal["reasoning"]
    summary: Objects | None = None
    content: Objects | None = None
    encrypted_content: None = None


class _ItemReference(MessagePart):
    type: Literal["item_reference"] | None = None
    id: Reference


class _InputText(MessagePart):
    type: Literal["input_text"]
    text: str


class _InputImage(MessagePart):
    type: Literal["input_image"]
    image_url: Annotated[str, Field(pattern="^data:")]
    detail: Literal["auto", "low", "high"] | None = None


class _OutputText(MessagePart):
    type: Literal["output_text"]
    text: str
    logprobs: list[Any] | None = None


class _Refusal(MessagePart):
    type: Literal["refusal"]
    refusal: str


_ITEMS: dict[str, type[MessagePart]] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionCallOutput,
    "reasoning": _Reasoning,
    "item_reference": _ItemReference,
}
_INPUT_PARTS: dict[str, type[MessagePart]] = {"input_text": _InputText, "input_image": _InputImage}
_OUTPUT_PARTS: dict[str, type[MessagePart]] = {"output_text": _OutputText, "refusal": _Refusal}
_REASONING_PARTS: dict[str, dict[str, type[MessagePart]]] = {
    "summary": {"summary_text": _SummaryText},
    "content": {"reasoning_text": _ReasoningText},
}
_TOOL_PARTS: dict[str, type[MessagePart]] = {"input_text": _InputText}


def read_items(given: str | Sequence[Item], where: str = "input") -> list[Item]:
    """Return the items of an input in their stored form, without ids that they lack.

    Raises InvalidRequestError naming the first field that is wrong.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not given:
        raise InvalidRequestError(f"{where} is empty; send an item or more", param=where)
    if len(given) > MAX_ITEMS:
        text = f"{where} has {len(given)} items; allowed: {MAX_ITEMS}"
        raise InvalidRequestError(text, param=where)
    return [_read_item(item, f"{where}[{number}]") for number, item in enumerate(given)]


def _read_item(item: Item, where: str) -> Item:
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference"
    checked = _checked(_ITEMS, kind, item, where)
    read = _listed(item, checked)
    read["type"] = kind
    if isinstance(checked, _Message):
        role, content = checked.role, checked.content
        parts = _OUTPUT_PARTS if role == "assistant" else _INPUT_PARTS
        text = "output_text" if role == "assistant" else "input_text"
        if isinstance(content, str):
            content = [{"type": text, "text": content}]
        elif role == "assistant":
            # Clients that build a history by hand write the texts of an answer as inputs.
            content = [{**part, "type": text} if _is_input(part) else part for part in content]
        read["content"] = _read_parts(content, parts, f"{where}.content")
    elif isinstance(checked, _FunctionCallOutput) and not isinstance(checked.output, str):
        read["output"] = _read_parts(checked.output, _TOOL_PARTS, f"{where}.output")
    elif isinstance(checked, _Reasoning):
        for name, known in _REASONING_PARTS.items():
            if name in read:
                read[name] = _read_parts(read[name], known, f"{where}.{name}")
        read.setdefault("summary", [])
    if kind != "item_reference":
        read.setdefault("status", "completed")
    return read


def _is_input(part: Item) -> bool:
    return part.get("type") == "input_text"


def _read_parts(parts: list[Item], known: dict[str, type[MessagePart]], where: str) -> list[Item]:
    read = []
    for number, part in enumerate(parts):
        checked = _checked(known, part.get("type"), part, f"{where}[{number}]")
        more: Item = {"annotations": []} if part["type"] == "output_text" else {}
        if part["type"] == "input_image":
            more = {"detail": "auto"}
        read.append(more | _listed(part, checked))
    return read


def _listed(value: Item, checked: MessagePart) -> Item:
    """Return the fields of an object, as the client wrote them, that are listed and not null."""
    fields = type(checked).model_fields
    return {name: each for name, each in value.items() if each is not None and name in fields}


def _checked(
    known: dict[str, type[MessagePart]], kind: Any, value: Item, where: str
) -> MessagePart:
    """Return the validated object. Raises InvalidRequestError naming the field within ``where``."""
    model = known.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidRequestError(
            f"{where}.type is {shown(kind)}; allowed: {', '.join(known)}",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    try:
        return model.model_validate(value)
    except ValidationError as error:
        url = value.get("image_url")
        if isinstance(url, str) and not url.startswith("data:"):
            field = f"{where}.image_url"
            text = f"{field}: must be a data: URL; workers fetch nothing"
            raise InvalidRequestError(text, param=field) from error
        problem = invalid(error, value)
        field = f"{where}.{problem.param}" if problem.param else where
        raise InvalidRequestError(
            f"{where}.{problem.message}", param=field, code=problem.code
        ) from error


def with_ids(items: Sequence[Item], record_id: str) -> list[Item]:
    """Return items of the input of a call with an id each; one that the client gave stays, once."""
    return _identified(items, set(), lambda kind, place: item_id(kind, record_id, f"i{place}"))


def with_new_ids(items: Sequence[Item], used: Iterable[str]) -> list[Item]:
    """Return items with an id each that is not ``used``; one that an item has stays if it is not."""
    return _identified(items, set(used), lambda kind, _: new_item_id(kind))


def _identified(
    items: Sequence[Item], used: set[str], new: Callable[[str, int], str]
) -> list[Item]:
    """Return items with different ids: pages end at an id, and would have no end with equal ones."""
    found = []
    for place, item in enumerate(items):
        if "id" not in item or item["id"] in used:
            item = {**item, "id": new(item["type"], place)}
        used.add(item["id"])
        found.append(item)
    return found


def item_id(kind: str, record_id: str, place: str | int) -> str:
    """Return the id of an item of a call; ``place`` is its index, after ``i`` in the input."""
    return f"{_PREFIXES[kind]}_{record_id}_{place}"


def new_item_id(kind: str) -> str:
    """Return an id for an item that belongs to no response."""
    return new_id(_PREFIXES[kind])


def response_of(reference: str) -> str | None:
    """Return the id of the stored response that an item's id leads to; None if it leads nowhere."""
    found = _STORED_ID.fullmatch(reference)
    return None if found is None else f"resp_{found[1]}"
