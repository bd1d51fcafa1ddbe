"""Messages of a chat, and the options of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import orjson
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fairserve.engine.torch.openai.fields import UNSUPPORTED, FieldsPart
from fairserve.engine.wire.prompt_options import PromptOptions


def _joined(content: Any) -> Any:
    """Join a list of text parts to one text; return other contents unchanged."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") if isinstance(part, dict) else None for part in content]
    if not all(
        isinstance(text, str) and part.get("type") == "text"
        for text, part in zip(texts, content, strict=True)
    ):
        raise PydanticCustomError(UNSUPPORTED, "a part is not text; this worker reads text only")
    return "\n".join(map(str, texts))


class PromptMessage(FieldsPart):
    """A message. Unknown fields are allowed if they are null."""

    role: str
    content: Annotated[str, BeforeValidator(_joined)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_null_extras(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: each for key, each in value.items() if each is not None}


Messages = Annotated[
    list[PromptMessage],
    Field(min_length=1, fail_fast=True, description="a list of at least one message"),
]


class _CalledFunction(FieldsPart):
    name: str = Field(min_length=1)
    arguments: str = "{}"


class _MessageToolCall(FieldsPart):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: _CalledFunction


class ToolMessage(PromptMessage):
    """A message that may call tools, or has the result of such a call."""

    content: Annotated[str, BeforeValidator(_joined)] = ""
    tool_calls: list[_MessageToolCall] = Field([])
    tool_call_id: str | None = None


ToolMessages = Annotated[
    list[ToolMessage],
    Field(min_length=1, fail_fast=True, description="a list of at least one message"),
]


class TemplateVariables(FieldsPart):
    """Variables of chat templates that clients may set: those that switch thinking."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class PromptFields(Protocol):
    """A body with the fields that change the prompt of a chat."""

    @property
    def add_generation_prompt(self) -> bool:
        """True: the start of the answer follows the messages."""
        ...

    @property
    def continue_final_message(self) -> bool:
        """True: the answer continues the last message."""
        ...

    @property
    def add_special_tokens(self) -> bool | None:
        """True: the tokenizer adds its special tokens to those of the template."""
        ...

    @property
    def chat_template_kwargs(self) -> TemplateVariables | None:
        """Variables of the template."""
        ...


def prompt_options(body: PromptFields) -> PromptOptions:
    """Return the options of a chat's prompt."""
    variables = body.chat_template_kwargs
    return PromptOptions(
        body.add_generation_prompt,
        body.continue_final_message,
        body.add_special_tokens,
        {} if variables is None else variables.model_dump(exclude_none=True),
    )


def plain(messages: Sequence[PromptMessage]) -> list[dict[str, Any]]:
    """Return messages in the form of a chat template's input; arguments of calls are objects."""
    found = [message.model_dump(exclude_none=True) for message in messages]
    for message in found:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = _object(call["function"]["arguments"])
    return found


def _object(arguments: str) -> dict[str, Any]:
    """Return arguments as an object, which is empty if they are not valid, as in vLLM."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
