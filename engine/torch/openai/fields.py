"""Pydantic models of request bodies, and the error that names the wrong field.

Every field is honoured, neutral, or rejected by name; none is dropped silently. Null counts as
absent.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "priority": (0,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields that this engine cannot honour, with their neutral values (null is neutral, too)."""

_DESCRIPTIVE = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields that describe the caller and do not affect the output."""
_NESTED = (
    "chat_template_kwargs",
    "messages",
    "response_format",
    "stream_options",
    "structured_outputs",
    "vllm_xargs",
)
"""Fields for which an error also names the inner field."""
UNSUPPORTED = "unsupported"
"""Type of a pydantic error for a value that this engine cannot honour."""
_MOST_KEYS = 1000
"""Maximum keys of an object that are checked: pydantic collects an error for each unknown one."""
_SHOWN_CHARACTERS = 60
_KINDS = {int: "a whole number", float: "a number", bool: "true, false", str: "a string"}


class RequestError(Exception):
    """The request is invalid, or needs a feature that this engine lacks."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class FieldsPart(BaseModel):
    """An object within a body. A field's description is the allowed value in its error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        items = ((key, v) for key, v in value.items() if v is not None or key not in known)
        return dict(islice(items, _MOST_KEYS))


class OpenAIBody(FieldsPart):
    """A whole body, validated by :meth:`read`."""

    @classmethod
    def read(cls, body: Any) -> Self:
        """Return the validated body of decoded JSON. Raises RequestError naming the field."""
        if not isinstance(body, dict):
            raise RequestError("the body must be a JSON object", None)
        known = cls.model_fields
        try:
            return cls.model_validate(
                {name: v for name, v in body.items() if name in known or not _is_unused(name, v)}
            )
        except ValidationError as error:
            raise _request_error(known, error.errors(include_url=False)[0]) from error


def _is_unused(name: str, value: Any) -> bool:
    """Return whether a field is neutral or descriptive. RequestError if it cannot be honoured."""
    if name in _DESCRIPTIVE:
        return True
    if name not in _NEUTRAL:
        return False
    if value is None or any(_same(each, value) for each in _NEUTRAL[name]):
        return True
    allowed = ", ".join(repr(each) for each in _NEUTRAL[name])
    raise RequestError(
        f"this worker cannot honour {name}; allowed: absent, null, {allowed}",
        name,
        "unsupported_parameter",
    )


def _request_error(fields: dict[str, FieldInfo], error: ErrorDetails) -> RequestError:
    name, *inner = error["loc"]
    param = str(name)
    if name in _NESTED:
        param += "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in inner)
    kind = error["type"]
    if kind == "extra_forbidden":
        if name == "messages" and inner:
            text = f"this worker cannot honour {param}; allowed: role, content, name"
            return RequestError(text, param, "unsupported_parameter")
        return RequestError(f"unknown field {param!r}", param, "unknown_parameter")
    if name == "model" and kind in ("missing", "string_too_short"):
        return RequestError("model must be given", "model", "missing_required_parameter")
    if kind == "model_type":
        return RequestError(f"{param} is {shown(error['input'])}; allowed: an object", param)
    allowed = None if inner and name in _NESTED else _allowed(fields[str(name)])
    if kind == "missing":
        return RequestError(f"{param} must be given" + (f": {allowed}" if allowed else ""), param)
    if allowed is None:
        reason = error["msg"][:1].lower() + error["msg"][1:]
        code = "unsupported_parameter" if kind == UNSUPPORTED else "invalid_value"
        return RequestError(f"{param} is {shown(error['input'])}: {reason}", param, code)
    verb = "has" if inner else "is"
    return RequestError(f"{param} {verb} {shown(error['input'])}; allowed: {allowed}", param)


def _allowed(field: FieldInfo) -> str:
    """Return the allowed values of a field: its description, or its type and bounds."""
    if field.description:
        return field.description
    kind = next(
        (text for each, text in _KINDS.items() if field.annotation in (each, each | None)), ""
    )
    low, over, high = (
        next((getattr(each, name) for each in field.metadata if hasattr(each, name)), None)
        for name in ("ge", "gt", "le")
    )
    if low is None and over is None:
        return kind
    if high is None:
        return f"{kind}, over {over:g}" if low is None else f"{kind}, {low:g} or more"
    most = f"{high:g}" if isinstance(high, float) else f"{high}"
    return (
        f"{kind} over {over:g}, up to {most}" if low is None else f"{kind} from {low:g} to {most}"
    )


def shown(value: Any) -> str:
    """Return a value for an error message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _same(left: Any, right: Any) -> bool:
    """Return whether two values are equal; true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
