"""What a completion request may look like, checked before anything is queued.

Only what the platform itself depends on is checked here, and what is wrong for every worker. Fields
that are not listed go on to the worker, which answers 400 for what it cannot honour: nothing is
dropped silently. The models validate; the original JSON is what goes on.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fairserve.platform.errors import InvalidRequestError
from fairserve.platform.user_ids import normal_user_id

MAX_SAMPLES = 128
MAX_METADATA_KEYS = 16
MAX_TOKENS_LIMIT = 1 << 31

RESERVED = frozenset(
    {
        "vllm_xargs",
        "priority",
        "request_id",
        "kv_transfer_params",
        "data_parallel_rank",
        "chat_template",
    }
)
"""Fields of the worker's dialect that are the platform's to set, or not for tenants at all."""

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
NonEmpty = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """``stream_options``; a field that nobody would honour is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def _user(text: str) -> str:
    """The one spelling of the user's id; an empty text names nobody."""
    return normal_user_id(text) if text else text


class CompletionBody(BaseModel):
    """What both kinds of requests have in common."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: NonEmpty
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: NonEmpty | list[NonEmpty] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, AfterValidator(_user)] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> CompletionBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options|needs stream to be true")
        for name in RESERVED & set(self.model_extra or ()):
            raise ValueError(f"{name}|is not for clients to set")
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
    def include_usage(self) -> bool:
        """Whether the stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class Message(BaseModel):
    """A chat message; what a role needs besides is the chat template's and the worker's matter."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: NonEmpty
    content: str | list[dict[str, Any]] | None = None


class ChatBody(CompletionBody):
    """``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Tokens | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _check_limits(self) -> ChatBody:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ValueError("max_tokens|differs from max_completion_tokens; give one of them")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs|needs logprobs to be true")
        return self

    @property
    def asked_tokens(self) -> int | None:
        """The output limit that the client named."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_field(self) -> str:
        """The field that names the output limit."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"


class TextBody(CompletionBody):
    """``/v1/completions``. One prompt a call: several prompts are several calls."""

    prompt: NonEmpty | Annotated[list[TokenId | str | list[TokenId]], Field(min_length=1)]
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


def invalid(error: ValidationError) -> InvalidRequestError:
    """The first problem of a body, naming its field as a client writes it: ``messages[0].role``."""
    problem = error.errors(include_url=False)[0]
    kind, text = problem["type"], problem["msg"]
    if kind == "value_error":
        text = text.removeprefix("Value error, ")
        param, bar, rest = text.partition("|")
        if bar:
            return InvalidRequestError(f"{param}: {rest}", param=param)
    location: list[str | int] = []
    for part in problem["loc"]:
        # Pydantic adds the names of union members ("constrained-str", "list[...]"): not fields.
        if isinstance(part, str) and location and not part.isidentifier():
            continue
        if isinstance(part, str) and part in ("str", "int", "float", "bool", "dict", "list"):
            continue
        location.append(part)
    param = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location).lstrip(".")
    code = "missing_required_parameter" if kind == "missing" else None
    if kind == "extra_forbidden":
        code = "unknown_parameter"
    value = problem["input"]
    # A number tells what was wrong with it; any other value may be long, or nobody else's business.
    given = f" is {value}" if isinstance(value, int | float) and param else ""
    return InvalidRequestError(f"{param}{given}: {text}", param=param or None, code=code)
