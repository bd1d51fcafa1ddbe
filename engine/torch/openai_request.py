"""Reads the bodies of /v1/chat/completions and /v1/completions.

Every field is honoured, neutral, or refused by name: nothing is dropped silently. ``user`` and
``metadata`` describe the caller and change no output, so they are accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["chat", "completion"]

MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "priority": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_k": (0, -1),
    "top_logprobs": (0,),
}
"""Fields that this engine cannot honour, with the values that ask for nothing (so does null)."""

_DESCRIPTIVE = ("user", "metadata", "safety_identifier", "prompt_cache_key")
_MESSAGE_KEYS = {"role", "content", "name"}


class RequestError(Exception):
    """The request is not valid, or asks for what this engine does not have."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request. ``messages`` is set for chat, ``prompt`` for completions."""

    kind: Kind
    model: str
    messages: list[dict[str, str]]
    prompt: str | list[int]
    samples: int
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str
    client_id: str
    call_id: str
    weight: float


def parse(kind: Kind, body: Any) -> GenerationRequest:
    """Check a decoded JSON body. Raises RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", None)
    fields = _Fields(body)
    model = fields.text("model", None)
    if not model:
        raise RequestError("model must be given", "model", "missing_required_parameter")
    messages: list[dict[str, str]] = []
    prompt: str | list[int] = ""
    if kind == "chat":
        messages = _messages(fields.take("messages"))
        max_tokens = fields.integer("max_completion_tokens", 1, None)
        older = fields.integer("max_tokens", 1, None)
        max_tokens = older if max_tokens is None else max_tokens
    else:
        prompt = _prompt(fields.take("prompt"))
        max_tokens = fields.integer("max_tokens", 1, None)
    samples = fields.integer("n", 1, MAX_SAMPLES)
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise RequestError("top_p is 0; allowed: over 0, up to 1", "top_p")
    stream = fields.flag("stream")
    include, continuous = _stream_options(fields.take("stream_options"), stream)
    client_id, call_id, weight = _xargs(fields.take("vllm_xargs"))
    user = body.get("user")
    request = GenerationRequest(
        kind=kind,
        model=model,
        messages=messages,
        prompt=prompt,
        samples=samples or 1,
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=top_p or 1.0,
        seed=fields.integer("seed", -(2**63), 2**63 - 1),
        stop=_stop(fields.take("stop")),
        stop_token_ids=_token_ids(fields.take("stop_token_ids")),
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        include_usage=include,
        continuous_usage=continuous,
        cache_salt=fields.text("cache_salt", ""),
        client_id=client_id or (user if isinstance(user, str) and user else "default"),
        call_id=call_id,
        weight=weight,
    )
    fields.refuse_the_rest()
    return request


class _Fields:
    """The fields of a body, taken one by one; null counts as absent."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._left = dict(body)

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def text(self, name: str, default: str | None) -> str:
        value = self.take(name)
        if value is None:
            return default or ""
        if not isinstance(value, str):
            raise RequestError(f"{name} must be a string", name)
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false", name)
        return value

    def integer(self, name: str, low: int, high: int | None) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        allowed = f"a whole number, at least {low}" + ("" if high is None else f", at most {high}")
        if not _is_integer(value) or value < low or (high is not None and value > high):
            raise RequestError(f"{name} must be {allowed}", name)
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        if not _is_number(value) or not low <= value <= high:
            raise RequestError(f"{name} must be a number from {low} to {high}", name)
        return float(value)

    def refuse_the_rest(self) -> None:
        for name in _DESCRIPTIVE:
            self.take(name)
        for name, value in self._left.items():
            if name not in _NEUTRAL:
                raise RequestError(f"unknown field {name!r}", name, "unknown_parameter")
            neutral = [each for each in _NEUTRAL[name] if _same(each, value)]
            if value is not None and not neutral:
                allowed = ", ".join(repr(each) for each in _NEUTRAL[name])
                raise RequestError(
                    f"this worker cannot honour {name}; allowed: absent, null, {allowed}",
                    name,
                    "unsupported_parameter",
                )


def _same(left: Any, right: Any) -> bool:
    """Equality that keeps true apart from 1."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _messages(value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a list of at least one message", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise RequestError(f"{where} must be an object", where)
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role must be a string", f"{where}.role")
    for key, value in message.items():
        if key not in _MESSAGE_KEYS and value is not None:
            raise RequestError(
                f"this worker cannot honour {where}.{key}; allowed: role, content, name",
                f"{where}.{key}",
                "unsupported_parameter",
            )
    result = {"role": message["role"], "content": _content(message.get("content"), where)}
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise RequestError(f"{where}.name must be a string", f"{where}.name")
        result["name"] = name
    return result


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    field = f"{where}.content"
    if not isinstance(content, list):
        raise RequestError(f"{field} must be a string or a list of text parts", field)
    for part in content:
        if not (
            isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
        ):
            raise RequestError(
                f"{field} has a part that is not text; this worker reads text only",
                field,
                "unsupported_parameter",
            )
    return "\n".join(part["text"] for part in content)


def _prompt(value: Any) -> str | list[int]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_integer(item) for item in value):
        return value
    raise RequestError(
        "prompt must be a string or a list of token ids, and not empty; "
        "several prompts are several calls",
        "prompt",
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stop = [value] if isinstance(value, str) else value
    if (
        not isinstance(stop, list)
        or len(stop) > MAX_STOP_STRINGS
        or not all(isinstance(text, str) and text for text in stop)
    ):
        raise RequestError(
            f"stop must be a string or a list of up to {MAX_STOP_STRINGS} strings, none empty",
            "stop",
        )
    return tuple(stop)


def _token_ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(_is_integer(item) for item in value):
        raise RequestError("stop_token_ids must be a list of token ids", "stop_token_ids")
    return frozenset(value)


def _stream_options(value: Any, stream: bool) -> tuple[bool, bool]:
    """include_usage and continuous_usage_stats (which implies nothing about the first)."""
    if value is None:
        return False, False
    if not stream:
        raise RequestError("stream_options needs stream to be true", "stream_options")
    known = ("include_usage", "continuous_usage_stats")
    if not isinstance(value, dict):
        raise RequestError("stream_options must be an object", "stream_options")
    for key, flag in value.items():
        where = f"stream_options.{key}"
        if key not in known:
            raise RequestError(f"unknown field {where}", where, "unknown_parameter")
        if flag is not None and not isinstance(flag, bool):
            raise RequestError(f"{where} must be true or false", where)
    return bool(value.get(known[0])), bool(value.get(known[1]))


def _xargs(value: Any) -> tuple[str, str, float]:
    """client_id, call_id ('' where absent) and weight."""
    if value is None:
        return "", "", 1.0
    if not isinstance(value, dict):
        raise RequestError("vllm_xargs must be an object", "vllm_xargs")
    for key in value:
        if key not in ("client_id", "call_id", "weight"):
            where = f"vllm_xargs.{key}"
            raise RequestError(f"unknown field {where}", where, "unknown_parameter")
    ids = []
    for key in ("client_id", "call_id"):
        text = value.get(key)
        if text is not None and not isinstance(text, str):
            raise RequestError(f"vllm_xargs.{key} must be a string", f"vllm_xargs.{key}")
        ids.append(text or "")
    weight = value.get("weight")
    if weight is None:
        weight = 1.0
    if not _is_number(weight) or weight <= 0:
        raise RequestError("vllm_xargs.weight must be a number over 0", "vllm_xargs.weight")
    return ids[0], ids[1], float(weight)
