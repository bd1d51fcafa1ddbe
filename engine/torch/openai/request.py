"""Reads the bodies of /v1/chat/completions and /v1/completions.

The models define types and limits (:mod:`fairserve.engine.torch.openai.fields` converts their
errors to ours); checks that involve several fields raise RequestError themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fairserve.engine.torch.bad_words import MAX_BAD_WORD_CHARS, MAX_BAD_WORDS, BadWords
from fairserve.engine.torch.openai.fields import FieldsPart, OpenAIBody, RequestError, shown
from fairserve.engine.torch.openai.prompt import (
    Messages,
    TemplateVariables,
    ToolMessages,
    plain,
    prompt_options,
)
from fairserve.engine.torch.openai.tools import (
    NO_TOOLS,
    AnyToolChoice,
    RequestedTools,
    Tools,
    requested_tools,
)
from fairserve.engine.torch.output_format import FormatKind, OutputFormat
from fairserve.engine.torch.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MIN_REPETITION_PENALTY,
    SamplingParams,
)
from fairserve.engine.torch.token_constraint import Grammar
from fairserve.engine.wire.prompt_options import PromptOptions

Kind = Literal["chat", "completion"]

MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 128
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 1024
MAX_CHOICES = 1_000
MAX_COMPLETION_LOGPROBS = 5
MAX_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request. ``messages`` is set for chat, ``prompt`` for completions."""

    kind: Kind
    model: str
    messages: list[dict[str, Any]]
    tools: RequestedTools
    prompt: str | list[int]
    prompt_options: PromptOptions
    samples: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float]
    allowed_token_ids: tuple[int, ...]
    """The only tokens of the output; empty: all."""
    bad_words: tuple[str, ...]
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    include_stop: bool
    skip_special: bool
    spaces_between_special: bool
    ignore_eos: bool
    min_tokens: int
    logprobs: int | None
    """Number of most likely tokens to report with each chosen one; None: no log probabilities."""
    output_format: OutputFormat | None
    """Form of the output; None for free text."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str
    client_id: str
    call_id: str
    weight: float
    expected_output_tokens: int

    def params(
        self,
        max_tokens: int,
        sample: int,
        grammar: Grammar | None,
        bad_words: BadWords | None = None,
    ) -> SamplingParams:
        """Return the options of one of the samples. ``bad_words`` has the tokens of the words."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            bad_words=bad_words,
            seed=None if self.seed is None else (self.seed + sample) % 2**64,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop=self.include_stop,
            skip_special=self.skip_special,
            spaces_between_special=self.spaces_between_special,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            grammar=grammar,
        )


_NonEmpty = Annotated[str, Field(min_length=1)]
_FormName = FormatKind | Literal["json_object"]


class _JsonSchema(FieldsPart):
    # The first two are notes for the model; the third always applies.
    name: Any = None
    description: Any = None
    strict: Any = None
    definition: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(FieldsPart):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_an_object(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return value
        name = "response_format.type"
        raise RequestError(f"{name} must be given; allowed: text, json_object, json_schema", name)

    @model_validator(mode="after")
    def _schema_fits_the_type(self) -> _ResponseFormat:
        name = "response_format.json_schema"
        if self.type != "json_schema" and self.json_schema is not None:
            raise RequestError(f"unknown field {name!r}", name, "unknown_parameter")
        if self.type == "json_schema" and self.json_schema is None:
            raise RequestError(f"{name} must be an object", name)
        return self

    @property
    def definition(self) -> dict[str, Any] | None:
        """Return the schema of the output; None for text."""
        if self.json_schema is not None:
            return self.json_schema.definition
        return {"type": "object"} if self.type == "json_object" else None


class _StructuredOutputs(FieldsPart):
    """vLLM's ``structured_outputs``: exactly one form of the output."""

    json_: Any = Field(None, alias="json")
    json_object: bool = False
    choice: Annotated[list[_NonEmpty], Field(fail_fast=True)] | None = Field(
        None, min_length=1, max_length=MAX_CHOICES
    )
    regex: _NonEmpty | None = None
    grammar: _NonEmpty | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> _StructuredOutputs:
        if not isinstance(self.json_, dict | str | None):
            name = "structured_outputs.json"
            raise RequestError(f"{name} is {shown(self.json_)}; allowed: an object", name)
        if len(self._forms()) != 1:
            raise RequestError(
                "structured_outputs must have exactly one of json, json_object (true), choice, "
                "regex, grammar",
                "structured_outputs",
            )
        return self

    @property
    def output_format(self) -> OutputFormat:
        """Return the form of the output."""
        ((name, definition),) = self._forms().items()
        kind: FormatKind = "json" if name == "json_object" else name
        return OutputFormat(f"structured_outputs.{name}", kind, definition)

    def _forms(self) -> dict[_FormName, Any]:
        forms: dict[_FormName, Any] = {
            "json": self.json_,
            "json_object": {"type": "object"} if self.json_object else None,
            "choice": self.choice,
            "regex": self.regex,
            "grammar": self.grammar,
        }
        return {name: definition for name, definition in forms.items() if definition is not None}


class _StreamOptions(FieldsPart):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Xargs(FieldsPart):
    client_id: str = ""
    call_id: str = ""
    weight: float = Field(1.0, gt=0)
    expected_output_tokens: int = Field(0, ge=0)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _of_allowed_size(value: Any) -> Any:
    """Check the size before the entries, since pydantic collects an error for each of them."""
    if isinstance(value, dict) and len(value) > MAX_BIASED_TOKENS:
        raise ValueError("too many tokens")
    return value


_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
_Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]
_BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
_Stop = Annotated[list[_NonEmpty], Field(fail_fast=True), BeforeValidator(_as_list)]


class _GenerationBody(OpenAIBody):
    """The fields of both endpoints."""

    model: str = Field(min_length=1)
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=MAX_TOP_K)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    frequency_penalty: float = Field(0.0, ge=-MAX_PENALTY, le=MAX_PENALTY)
    repetition_penalty: float = Field(1.0, ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)
    logit_bias: Annotated[dict[_TokenId, _Bias], BeforeValidator(_of_allowed_size)] = Field(
        {},
        description=f"an object of up to {MAX_BIASED_TOKENS} token ids and their bias, "
        f"{-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}",
    )
    allowed_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ALLOWED_TOKENS,
        description=f"a list of 1 to {MAX_ALLOWED_TOKENS} token ids",
    )
    bad_words: Annotated[list[_BadWord], Field(fail_fast=True)] = Field(
        [],
        max_length=MAX_BAD_WORDS,
        description=f"a list of up to {MAX_BAD_WORDS} words of 1 to {MAX_BAD_WORD_CHARS} characters",
    )
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: _Stop = Field(
        [],
        max_length=MAX_STOP_STRINGS,
        description=f"a string or a list of up to {MAX_STOP_STRINGS} strings, none empty",
    )
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] = Field(
        [],
        max_length=MAX_STOP_TOKENS,
        description=f"a list of up to {MAX_STOP_TOKENS} token ids",
    )
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    response_format: _ResponseFormat = _ResponseFormat(type="text")
    structured_outputs: _StructuredOutputs | None = Field(None)
    stream: bool = False
    stream_options: _StreamOptions | None = Field(None)
    cache_salt: str = ""
    user: Any = None
    vllm_xargs: _Xargs = Field(_Xargs())

    @model_validator(mode="after")
    def _fields_fit_together(self) -> _GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", "stream_options")
        limit = self.limit_tokens()
        if limit is not None and self.min_tokens > limit:
            raise RequestError(
                f"min_tokens is {self.min_tokens}; allowed: a whole number from 0 to {limit}",
                "min_tokens",
            )
        formatted = self.output_format is not None
        if self.structured_outputs and self.response_format.definition is not None:
            raise RequestError(
                "structured_outputs cannot be combined with a response_format of JSON",
                "structured_outputs",
            )
        if self.allowed_token_ids and (self.min_tokens or formatted):
            raise RequestError(
                "allowed_token_ids cannot be combined with min_tokens, structured_outputs or a "
                "response_format of JSON: there may be no token left",
                "allowed_token_ids",
                "unsupported_parameter",
            )
        if self.bad_words and (self.allowed_token_ids or formatted):
            raise RequestError(
                "bad_words cannot be combined with allowed_token_ids, structured_outputs or a "
                "response_format of JSON: there may be no token left",
                "bad_words",
                "unsupported_parameter",
            )
        for name in ("ignore_eos", "min_tokens"):
            if formatted and getattr(self, name):
                raise RequestError(
                    f"{name} cannot be combined with structured_outputs or a response_format of "
                    "JSON: the output ends where its format does",
                    name,
                    "unsupported_parameter",
                )
        return self

    @property
    def output_format(self) -> OutputFormat | None:
        """Return the form of the output; None for free text."""
        if self.structured_outputs is not None:
            return self.structured_outputs.output_format
        schema = self.response_format.definition
        return None if schema is None else OutputFormat("response_format", "json", schema)

    def limit_tokens(self) -> int | None:
        """Return the requested limit of output tokens; None if there is none."""
        return self.max_tokens


class _ChatBody(_GenerationBody):
    messages: Messages
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _prompt_options_fit_together(self) -> _ChatBody:
        if problem := self.prompt_options.problem():
            raise RequestError(problem, "continue_final_message")
        return self

    @property
    def prompt_options(self) -> PromptOptions:
        """Return the options of the prompt."""
        return prompt_options(self)

    @model_validator(mode="after")
    def _logprobs_fit_together(self) -> _ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise RequestError(
                f"top_logprobs is {self.top_logprobs}; allowed: 0 unless logprobs is true",
                "top_logprobs",
            )
        return self

    def limit_tokens(self) -> int | None:
        """Return the newer field's value, or else the older one's."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer


class _ToolChatBody(_ChatBody):
    messages: ToolMessages  # type: ignore[assignment]  # a message with more fields
    tools: Tools = Field([])
    tool_choice: AnyToolChoice = None


class _CompletionBody(_GenerationBody):
    prompt: str | Annotated[list[int], Field(fail_fast=True)] = Field(
        min_length=1,
        description="a string or a list of token ids, not empty; several prompts are several calls",
    )
    add_special_tokens: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_COMPLETION_LOGPROBS)

    @property
    def prompt_options(self) -> PromptOptions:
        """Return the options of the prompt."""
        return PromptOptions(special_tokens=self.add_special_tokens)


def parse(kind: Kind, body: Any, *, with_tools: bool = False) -> GenerationRequest:
    """Return the validated request of a decoded JSON body. Raises RequestError naming the field.

    ``with_tools``: the model calls tools.
    """
    messages: list[dict[str, Any]] = []
    tools = NO_TOOLS
    prompt: str | list[int] = ""
    read: _ChatBody | _CompletionBody
    if kind == "chat":
        read = chat = (_ToolChatBody if with_tools else _ChatBody).read(body)
        if isinstance(chat, _ToolChatBody):
            tools = requested_tools(chat.tools, chat.tool_choice)
        messages = plain(chat.messages)
        logprobs = chat.top_logprobs if chat.logprobs else None
    else:
        read = completion = _CompletionBody.read(body)
        prompt, logprobs = completion.prompt, completion.logprobs
    options, xargs = read.stream_options or _StreamOptions(), read.vllm_xargs
    user = read.user if isinstance(read.user, str) else ""
    return GenerationRequest(
        kind=kind,
        model=read.model,
        messages=messages,
        tools=tools,
        prompt=prompt,
        prompt_options=read.prompt_options,
        samples=read.n,
        max_tokens=read.limit_tokens(),
        temperature=read.temperature,
        top_p=read.top_p,
        top_k=read.top_k,
        min_p=read.min_p,
        presence_penalty=read.presence_penalty,
        frequency_penalty=read.frequency_penalty,
        repetition_penalty=read.repetition_penalty,
        logit_bias={int(token): bias for token, bias in read.logit_bias.items()},
        allowed_token_ids=tuple(dict.fromkeys(read.allowed_token_ids or ())),
        bad_words=tuple(dict.fromkeys(read.bad_words)),
        seed=read.seed,
        stop=tuple(read.stop),
        stop_token_ids=frozenset(read.stop_token_ids),
        include_stop=read.include_stop_str_in_output,
        skip_special=read.skip_special_tokens,
        spaces_between_special=read.spaces_between_special_tokens,
        ignore_eos=read.ignore_eos,
        min_tokens=read.min_tokens,
        logprobs=logprobs,
        output_format=read.output_format,
        stream=read.stream,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        cache_salt=read.cache_salt,
        client_id=xargs.client_id or user or "default",
        call_id=xargs.call_id,
        weight=xargs.weight,
        expected_output_tokens=xargs.expected_output_tokens,
    )
