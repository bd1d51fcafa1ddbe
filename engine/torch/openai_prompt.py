"""Messages of a chat."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fairserve.engine.torch.openai_fields import UNSUPPORTED, Part


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


class Message(Part):
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
    list[Message], Field(min_length=1, fail_fast=True, description="a list of at least one message")
]


def plain(messages: list[Message]) -> list[dict[str, str]]:
    """Return messages in the form of a chat template's input."""
    return [message.model_dump(exclude_none=True) for message in messages]
