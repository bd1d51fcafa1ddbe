"""Validate the fields of ``/v1/responses``. An unknown field or an unsupported value is rejected.

A response is answered by a chat call (:mod:`fairserve.platform.serving.responses.translate`), so only
fields that a chat call can honour exist here. The chat call's own validation follows; this one names
the fields as the client wrote them. Items are validated in
:mod:`fairserve.platform.serving.responses.items`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.user_ids import normal_user_id
from fairserve.platform.base.validation import at_most
from fairserve.platform.serving.body_part import BodyPart
from fairserve.platform.serving.completions.output_schema import Schema
from fairserve.platform.serving.completions.schemas import (
    MAX_METADATA_KEYS,
    Effort,
    NonEmpty,
    SamplingFields,
    Tokens,
    invalid,
)
from fairserve.platform.serving.completions.tools import (
    MAX_TOOLS,
    FunctionName,
    check_tool_types,
)
from fairserve.platform.serving.decision.request import RequestedTier

MAX_METADATA_CHARS = 512
MAX_METADATA_KEY_CHARS = 64
MAX_REFERENCE_CHARS = 128
"""Characters of the id of a stored object."""

Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=MAX_METADATA_KEY_CHARS)],
        Annotated[str, Field(max_length=MAX_METADATA_CHARS)],
    ],
    Field(max_length=MAX_METADATA_KEYS),
    at_most(MAX_METADATA_KEYS),
]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a character that is not printable")
    return text


Reference = Annotated[
    str, Field(min_length=1, max_length=MAX_REFERENCE_CHARS), AfterValidator(_printable)
]
"""Id of a stored object. PostgreSQL stores no NUL, which an answer would only meet at its end."""
Label = Annotated[str, Field(max_length=1_000)]


class FunctionTool(BodyPart):
    """A function that the model may call. No other kind of tool is supported."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class FunctionChoice(BodyPart):
    """The function that the model must call."""

    type: Literal["function"]
    name: NonEmpty


class TextFormat(BodyPart):
    """``text.format``; the fields of ``json_schema`` are beside its type."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Schema | None = Field(None, alias="schema")


class Text(BodyPart):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Effort | None = None


class Reasoning(BodyPart):
    """``reasoning``. Workers return the reasoning itself, so there are no summaries of it."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class ResponseStreamOptions(BodyPart):
    """``stream_options``. Events are never padded."""

    include_obfuscation: bool | None = None


class ConversationReference(BodyPart):
    """``conversation`` as an object."""

    id: Reference


class ResponseBody(SamplingFields, BodyPart):
    """``POST /v1/responses``, with the sampling fields of chat, as vLLM's."""

    model: NonEmpty
    input: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)]
    instructions: str | None = None
    previous_response_id: Reference | None = None
    conversation: Reference | ConversationReference | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Tokens | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    """Limits built-in tools, of which there are none."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: (
        Annotated[
            list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]],
            Field(fail_fast=True),
        ]
        | None
    ) = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    metadata: Metadata | None = None
    user: Annotated[str, AfterValidator(lambda text: normal_user_id(text) if text else text)] | (
        None
    ) = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    service_tier: RequestedTier | None = None

    @model_validator(mode="after")
    def _check_together(self) -> ResponseBody:
        if self.previous_response_id is not None and self.conversation is not None:
            raise ValueError("previous_response_id|is not allowed together with conversation")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options|needs stream to be true")
        if self.background and self.store is False:
            raise ValueError("background|needs store to be true")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise ValueError("tool_choice|needs tools")
        return self

    @model_validator(mode="after")
    def _check_format(self) -> ResponseBody:
        wanted = self.text.format if self.text is not None else None
        if wanted is not None:
            schema, named = wanted.schema_, wanted.type == "json_schema"
            if (schema is not None) != named:
                needs = "is needed with" if named else "is only for"
                raise ValueError(f"text.format.schema|{needs} type json_schema")
        return self

    @property
    def conversation_id(self) -> str | None:
        """Id of the conversation."""
        if isinstance(self.conversation, ConversationReference):
            return self.conversation.id
        return self.conversation

    @property
    def wants_logprobs(self) -> bool:
        """True if the answer has log probabilities."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())


def read_body(plain: dict[str, Any]) -> ResponseBody:
    """Check the fields of a request. Raises InvalidRequestError naming the first that is wrong."""
    input_ = plain.get("input")
    if "input" in plain and not isinstance(input_, str | list):
        raise InvalidRequestError("input must be a text or a list of items", param="input")
    check_tool_types(plain.get("tools"))
    try:
        return ResponseBody.model_validate(plain)
    except ValidationError as error:
        raise invalid(error, plain) from error
