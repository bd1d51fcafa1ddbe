"""Validate completion requests before anything is queued.

Values are checked here, with bounds for all that costs a worker more than its tokens. Which fields
there are, and which kind of worker gets them, is in :mod:`fairserve.engine.wire.request_fields`.
The models validate; the original JSON is passed on, as far as the table allows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fairserve.engine.wire.prompt_options import DEFAULT_PROMPT, PromptOptions
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.user_ids import normal_user_id
from fairserve.platform.base.validation import at_most, true_problem
from fairserve.platform.serving.body_part import BodyPart, StrictPart
from fairserve.platform.serving.completions.output_schema import Schema
from fairserve.platform.serving.completions.tools import (
    MAX_TOOLS,
    ChatTool,
    ChatToolCall,
    ChatToolChoice,
)
from fairserve.platform.serving.decision.request import RequestedTier

ADDRESSED = ("image_url", "video_url", "audio_url")
"""Parts whose media is at an address."""
TEXTS = ("text", "refusal")
"""Parts that are texts."""
MAX_WORD_CHARS = 32


def media_problem(part: Mapping[str, Any]) -> str:
    """Return the problem of a part of a message, as ``field|text``; empty if there is none."""
    for name in TEXTS:
        if not isinstance(part.get(name, ""), str):
            return f"{name}|must be a text"
    for name in ADDRESSED:
        if (media := part.get(name)) is not None:
            plain = {"url": media} if isinstance(media, str) else media
            if problem := _problem(plain, "detail"):
                return f"{name}{problem}"
            url = plain.get("url")
            if not (isinstance(url, str) and url[:5] == "data:"):
                return f"{name}|must have a data: URL; workers fetch nothing"
    if (audio := part.get("input_audio")) is not None:
        if problem := _problem(audio, "format"):
            return f"input_audio{problem}"
        data = audio.get("data")
        if not isinstance(data, str) or ":" in data:
            return "input_audio.data|must be base64; workers fetch nothing"
    return ""


def _problem(media: Any, word: str) -> str:
    """Return the problem of the object of a part, after its name; ``word`` is a field with a word."""
    if not isinstance(media, dict):
        return "|must be an object"
    value = media.get(word)
    if value is not None and not (
        isinstance(value, str) and value.isalnum() and len(value) <= MAX_WORD_CHARS
    ):
        return f".{word}|must be a word of up to {MAX_WORD_CHARS} letters and digits"
    return ""


MAX_SAMPLES = 128
MAX_METADATA_KEYS = 16
MAX_TOKENS_LIMIT = 1 << 31
MAX_TOP_K = 1 << 31
"""Bound of ``top_k``: engines keep it in 32 bits."""
MAX_STOPS = 16
MAX_STOP_CHARS = 1_000
MAX_LISTED_TOKENS = 1_024
MAX_BAD_WORDS = 128
MAX_CHOICES = 1_000
MAX_CHOICE_CHARS = 1_000

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
NonEmpty = Annotated[str, Field(min_length=1)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Effort = Annotated[str, Field(min_length=1, max_length=20)]
Choice = Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARS)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(StrictPart):
    """``stream_options``; a field that no worker honours is rejected."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: the running usage in every chunk; no effect without ``include_usage``."""


class StructuredOutputs(BodyPart):
    """Checks vLLM's ``structured_outputs``. What could block a worker is rejected: regular
    expressions and grammars of the client's.
    """

    json_: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    choice: (
        Annotated[list[Choice], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)] | None
    ) = None


class TemplateOptions(StrictPart):
    """Checks ``chat_template_kwargs``: only the options of common templates that switch thinking."""

    enable_thinking: bool | None = None
    thinking: bool | None = None


class JsonSchema(StrictPart):
    """Checks ``response_format.json_schema``."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: Schema | None = Field(None, alias="schema")


class ResponseFormat(StrictPart):
    """Checks ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def _user(text: str) -> str:
    """The one spelling of the user's id; an empty text names nobody."""
    return normal_user_id(text) if text else text


class SamplingFields(StrictPart):
    """Fields that choose the tokens and the text of the output, most of them vLLM's. Each protocol that
    chat calls answer may have them.
    """

    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None
    ) = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    logit_bias: (
        Annotated[dict[str, Bias], Field(max_length=MAX_LISTED_TOKENS), at_most(MAX_LISTED_TOKENS)]
        | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, fail_fast=True)] | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_LISTED_TOKENS, fail_fast=True)]
        | None
    ) = None
    bad_words: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=200)]],
            Field(max_length=MAX_BAD_WORDS, fail_fast=True),
        ]
        | None
    ) = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class CompletionBody(SamplingFields):
    """The fields that both kinds of requests share."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: NonEmpty
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, AfterValidator(_user)] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS)] | None = None
    service_tier: RequestedTier | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _check_together(self) -> CompletionBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options|needs stream to be true")
        wanted = self.response_format
        inner = None if wanted is None else wanted.json_schema
        if wanted is not None and (inner is not None) != (wanted.type == "json_schema"):
            needs = "is needed with" if inner is None else "is only for"
            raise ValueError(f"response_format.json_schema|{needs} type json_schema")
        return self

    @property
    def asked_tokens(self) -> int | None:
        """The output limit that the client named."""
        return self.max_tokens

    @property
    def asked_field(self) -> str:
        """The field that names the output limit."""
        return "max_tokens"

    @property
    def prompt_options(self) -> PromptOptions:
        """The options with which the worker makes the prompt."""
        if self.add_special_tokens is None:
            return DEFAULT_PROMPT
        return PromptOptions(special_tokens=self.add_special_tokens)

    @property
    def include_usage(self) -> bool:
        """True if the stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """True if every chunk of that stream has the running usage."""
        return self.include_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )


class ChatMessage(StrictPart):
    """A chat message; what a role needs besides is the chat template's and the worker's matter."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: NonEmpty
    content: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ChatToolCall], Field(fail_fast=True)] | None = None


class ChatBody(CompletionBody):
    """``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Tokens | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    verbosity: Effort | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Tokens | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> ChatBody:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ValueError("max_tokens|differs from max_completion_tokens; give one of them")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs|needs logprobs to be true")
        if problem := self.prompt_options.problem():
            raise ValueError(f"continue_final_message|{problem}")
        self._check_tool_choice()
        self._check_media()
        return self

    @property
    def prompt_options(self) -> PromptOptions:
        """The options with which the worker makes the prompt."""
        kwargs = self.chat_template_kwargs
        complete = self.add_generation_prompt is not False
        final, special = bool(self.continue_final_message), self.add_special_tokens
        if complete and not final and special is None and kwargs is None:
            return DEFAULT_PROMPT
        template = {} if kwargs is None else kwargs.model_dump(exclude_none=True)
        return PromptOptions(complete, final, special, template)

    def _check_tool_choice(self) -> None:
        if self.tool_choice in (None, "none", "auto"):
            return
        names = [tool.function.name for tool in self.tools or ()]
        if not names:
            raise ValueError("tool_choice|needs tools")
        chosen = self.tool_choice
        if isinstance(chosen, ChatToolChoice) and chosen.function.name not in names:
            raise ValueError("tool_choice|names a function that is not in tools")

    def _check_media(self) -> None:
        """Reject addresses: workers would fetch them, in a network that clients must not reach. Objects
        in place of texts, whose tokens would not be counted, are rejected, too.
        """
        for number, message in enumerate(self.messages):
            parts = message.content if isinstance(message.content, list) else ()
            for index, part in enumerate(parts):
                if problem := media_problem(part):
                    raise ValueError(f"messages[{number}].content[{index}].{problem}")

    @property
    def asked_tokens(self) -> int | None:
        """The output limit that the client named."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_field(self) -> str:
        """The field that names the output limit."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def has_media(self) -> bool:
        """True if a message has parts that are no text, whose tokens are not counted."""
        contents = (each.content for each in self.messages if isinstance(each.content, list))
        return any(not isinstance(part.get("text"), str) for parts in contents for part in parts)


class TextBody(CompletionBody):
    """``/v1/completions``. One prompt a call: several prompts are several calls."""

    prompt: (
        NonEmpty
        | Annotated[
            list[TokenId | str | Annotated[list[TokenId], Field(fail_fast=True)]],
            Field(min_length=1, fail_fast=True),
        ]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> TextBody:
        if isinstance(self.prompt, str) or all(isinstance(part, int) for part in self.prompt):
            return self
        if len(self.prompt) > 1:
            raise ValueError("prompt|has several prompts; send one call for each")
        if not self.prompt[0]:
            raise ValueError("prompt|is empty")
        return self

    @property
    def only_prompt(self) -> str | list[int]:
        """The prompt itself, out of a list that holds nothing else."""
        if isinstance(self.prompt, str):
            return self.prompt
        first = self.prompt[0]
        if isinstance(first, int):
            return [part for part in self.prompt if isinstance(part, int)]
        return first


def invalid(
    error: ValidationError, body: Any, tags: Collection[str] = frozenset()
) -> InvalidRequestError:
    """The first problem of a body, naming its field as a client writes it: ``messages[0].role``.

    ``tags`` are the values that distinguish the members of a list, such as the types of blocks.
    """
    problem = true_problem(error.errors(include_url=False), body, tags)
    param, text = problem.field, problem.text
    if problem.kind == "value_error":
        named, bar, rest = text.partition("|")
        if bar:
            return InvalidRequestError(f"{named}: {rest}", param=named)
    code = "missing_required_parameter" if problem.kind == "missing" else None
    if problem.kind == "extra_forbidden":
        code = "unknown_parameter"
    value = problem.value
    # A number explains the error; any other value may be long or confidential.
    given = f" is {value}" if isinstance(value, int | float) and param else ""
    return InvalidRequestError(f"{param}{given}: {text}", param=param or None, code=code)
