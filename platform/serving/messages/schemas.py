"""Validate requests in Anthropic's format. A field or a block that nobody honours is rejected by name.

The models check the shape and Anthropic's own bounds. What a field costs a worker is checked on its
translation (:mod:`fairserve.platform.serving.messages.translate`), as for every chat call.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fairserve.engine.wire.request_fields import shown
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.body_part import BodyPart, MessagePart
from fairserve.platform.serving.completions.output_schema import Schema
from fairserve.platform.serving.completions.schemas import (
    MAX_STOPS,
    MAX_TOP_K,
    NonEmpty,
    StopString,
    Tokens,
    invalid,
)
from fairserve.platform.serving.completions.tools import MAX_TOOLS, FunctionName

MIN_THINKING_TOKENS = 1_024


class _Cacheable(BodyPart):
    """A tool or a request with a mark for caching. It has no effect: every prefix is cached."""

    cache_control: dict[str, Any] | None = None


class TextBlock(MessagePart):
    """A text."""

    type: Literal["text"]
    text: str


class ImageSource(MessagePart):
    """The bytes of an image. Addresses and files are rejected: workers fetch nothing."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: NonEmpty


class ImageBlock(MessagePart):
    """An image."""

    type: Literal["image"]
    source: ImageSource


class ToolUseBlock(MessagePart):
    """A call of a tool, in an earlier answer."""

    type: Literal["tool_use"]
    id: NonEmpty
    name: NonEmpty
    input: dict[str, Any]


class ThinkingBlock(MessagePart):
    """The thinking of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinkingBlock(MessagePart):
    """Encrypted thinking of an earlier answer, which no worker can read."""

    type: Literal["redacted_thinking"]
    data: str


def _as_blocks(content: Any) -> Any:
    """Return a content as blocks; a text stands for one block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ToolResultBlock(MessagePart):
    """The result of a tool."""

    type: Literal["tool_result"]
    tool_use_id: NonEmpty
    content: Annotated[
        list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]],
        Field(fail_fast=True),
        BeforeValidator(_as_blocks),
    ] = Field(default_factory=list)
    is_error: bool | None = None


Block = (
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
)
BLOCKS_OF: dict[str, dict[str, type[Block]]] = {
    "system": {"text": TextBlock},
    "user": {"text": TextBlock, "image": ImageBlock, "tool_result": ToolResultBlock},
    "assistant": {
        "text": TextBlock,
        "thinking": ThinkingBlock,
        "redacted_thinking": RedactedThinkingBlock,
        "tool_use": ToolUseBlock,
    },
}
"""Blocks that the messages of each role may have, by type."""


class Message(MessagePart):
    """One turn, or instructions of the app in between."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Annotated[Block, Field(discriminator="type")]],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_as_blocks),
    ]


class Tool(_Cacheable):
    """A tool of the client's. Tools that Anthropic's servers run have other types."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: Schema
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    """No effect: arguments are streamed as the worker generates them."""
    defer_loading: Literal[False] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(fail_fast=True)] | None = None
    input_examples: Annotated[list[Any], Field(max_length=0)] | None = None


class ToolChoice(BodyPart):
    """The tools that the model may or must use."""

    type: Literal["auto", "any", "tool", "none"]
    name: NonEmpty | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(BodyPart):
    """The model's thinking before its answer."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING_TOKENS)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesOutputFormat(BodyPart):
    """A JSON schema for the answer."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(BodyPart):
    """Effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: MessagesOutputFormat | None = None


class Metadata(BodyPart):
    """Facts about the request."""

    user_id: str | None = None


class CountBody(_Cacheable):
    """``/v1/messages/count_tokens``, and the fields of a message that its prompt depends on."""

    model: NonEmpty
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    system: (
        Annotated[list[TextBlock], Field(fail_fast=True), BeforeValidator(_as_blocks)] | None
    ) = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    speed: Literal["standard"] | None = None

    @model_validator(mode="after")
    def _check_blocks(self) -> CountBody:
        """Check that each role has only its own blocks."""
        for number, message in enumerate(self.messages):
            allowed = BLOCKS_OF[message.role]
            for index, block in enumerate(message.content):
                if block.type not in allowed:
                    where = f"messages[{number}].content[{index}].type"
                    raise ValueError(
                        f"{where}|is {block.type}; allowed for {message.role}: {', '.join(allowed)}"
                    )
        return self

    @model_validator(mode="after")
    def _check_tool_choice(self) -> CountBody:
        choice = self.tool_choice
        if choice is None:
            return self
        if (choice.name is not None) != (choice.type == "tool"):
            needs = "is needed with" if choice.name is None else "is only for"
            raise ValueError(f"tool_choice.name|{needs} type tool")
        if choice.type in ("any", "tool"):
            names = [tool.name for tool in self.tools or ()]
            if not names or (choice.name is not None and choice.name not in names):
                raise ValueError("tool_choice|must be for one of the tools of the request")
        return self

    @model_validator(mode="after")
    def _check_thinking(self) -> CountBody:
        thinking = self.thinking
        if thinking is None:
            return self
        if (thinking.budget_tokens is not None) != (thinking.type == "enabled"):
            needs = "is needed with" if thinking.budget_tokens is None else "is only for"
            raise ValueError(f"thinking.budget_tokens|{needs} type enabled")
        return self


class MessageBody(CountBody):
    """``/v1/messages``."""

    max_tokens: Tokens
    stream: bool | None = None
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None
    ) = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=MAX_TOP_K)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    """No effect: there is one tier."""

    @model_validator(mode="after")
    def _check_budget(self) -> MessageBody:
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise ValueError(
                f"thinking.budget_tokens|is {budget}; must be less than max_tokens,"
                f" {self.max_tokens}"
            )
        return self


def wrong(error: ValidationError, body: Any) -> InvalidRequestError:
    """Return the first problem of a body, naming its field as a client writes it."""
    problem = error.errors(include_url=False)[0]
    if problem["type"] != "union_tag_invalid":
        return invalid(error, body, tags=_TAGS)
    where = "".join(
        f"[{p}]" if isinstance(p, int) else f".{p}" for p in problem["loc"] if p not in _TAGS
    )
    context = problem["ctx"]
    param = f"{where.lstrip('.')}.type"
    return InvalidRequestError(
        f"{param} is {shown(context['tag'])}; allowed: {context['expected_tags']}", param=param
    )


_TAGS = frozenset(name for blocks in BLOCKS_OF.values() for name in blocks)
