"""Reads the bodies of /v1/chat/completions and /v1/completions.

Every field is honoured, neutral, or rejected by name: nothing is dropped silently. ``user`` and
``metadata`` describe the caller and change no output, so they are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fairserve.engine.torch.openai_fields import (
    Fields,
    RequestError,
    is_integer,
    is_number,
    shown,
)
from fairserve.engine.torch.openai_prompt import read_messages, read_prompt
from fairserve.engine.torch.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_PENALTY,
    SamplingParams,
)
from fairserve.engine.torch.token_constraint import Grammar

Kind = Literal["chat", "completion"]

MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 128
MAX_BIASED_TOKENS = 1024
MAX_COMPLETION_LOGPROBS = 5
MAX_TOP_K = 2**31 - 1


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
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    min_tokens: int
    logprobs: int | None
    """Likeliest tokens to report beside each chosen one; None: no log probabilities."""
    schema: dict[str, Any] | None
    """JSON schema of the output; None if it is free."""
    stream: bool
    include_usage: bool
    continuous_usage: bool
    cache_salt: str
    client_id: str
    call_id: str
    weight: float
    expected_output_tokens: int

    def params(self, max_tokens: int, sample: int, grammar: Grammar | None) -> SamplingParams:
        """Return the options of one of the samples."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            seed=None if self.seed is None else (self.seed + sample) % 2**64,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            grammar=grammar,
        )


def parse(kind: Kind, body: Any) -> GenerationRequest:
    """Check a decoded JSON body. Raises RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", None)
    fields = Fields(body)
    model = fields.text("model", None)
    if not model:
        raise RequestError("model must be given", "model", "missing_required_parameter")
    messages: list[dict[str, str]] = []
    prompt: str | list[int] = ""
    if kind == "chat":
        messages = read_messages(fields.take("messages"))
        max_tokens = fields.integer("max_completion_tokens", 1, None)
        older = fields.integer("max_tokens", 1, None)
        max_tokens = older if max_tokens is None else max_tokens
    else:
        prompt = read_prompt(fields.take("prompt"))
        max_tokens = fields.integer("max_tokens", 1, None)
    temperature = fields.number("temperature", 0, 2)
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise RequestError("top_p is 0; allowed: over 0, up to 1", "top_p")
    stream = fields.flag("stream")
    include, continuous = _stream_options(fields.take("stream_options"), stream)
    client_id, call_id, weight, expected = _xargs(fields.take("vllm_xargs"))
    user = body.get("user")
    request = GenerationRequest(
        kind=kind,
        model=model,
        messages=messages,
        prompt=prompt,
        samples=fields.integer("n", 1, MAX_SAMPLES) or 1,
        max_tokens=max_tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=top_p or 1.0,
        top_k=fields.integer("top_k", -1, MAX_TOP_K) or 0,
        min_p=fields.number("min_p", 0, 1) or 0.0,
        presence_penalty=fields.number("presence_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -MAX_PENALTY, MAX_PENALTY) or 0.0,
        logit_bias=_logit_bias(fields.take("logit_bias")),
        seed=fields.integer("seed", -(2**63), 2**63 - 1),
        stop=_stop(fields.take("stop")),
        stop_token_ids=_token_ids(fields.take("stop_token_ids")),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", 0, max_tokens) or 0,
        logprobs=_logprobs(kind, fields),
        schema=_schema(fields.take("response_format")),
        stream=stream,
        include_usage=include,
        continuous_usage=continuous,
        cache_salt=fields.text("cache_salt", ""),
        client_id=client_id or (user if isinstance(user, str) and user else "default"),
        call_id=call_id,
        weight=weight,
        expected_output_tokens=expected,
    )
    fields.reject_the_rest()
    _check_together(request)
    return request


def _check_together(request: GenerationRequest) -> None:
    """Raise RequestError for fields that contradict a grammar, which decides where the output ends."""
    if request.schema is None:
        return
    for name, given in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if given:
            raise RequestError(
                f"{name} cannot be combined with a response_format of JSON: the output ends where "
                "the JSON does",
                name,
                "unsupported_parameter",
            )


def _logprobs(kind: Kind, fields: Fields) -> int | None:
    """Return the number of likeliest tokens; chat has a switch and a number, completions a number."""
    if kind == "completion":
        return fields.integer("logprobs", 0, MAX_COMPLETION_LOGPROBS)
    switch = fields.flag("logprobs")
    count = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if count and not switch:
        raise RequestError(
            f"top_logprobs is {count}; allowed: 0 unless logprobs is true", "top_logprobs"
        )
    return (count or 0) if switch else None


def _schema(value: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a ``response_format``; None if it asks for text."""
    if value is None:
        return None
    name = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise RequestError(
            f"{name}.type must be given; allowed: text, json_object, json_schema", f"{name}.type"
        )
    for key in value:
        if key != "type" and (kind, key) != ("json_schema", "json_schema"):
            raise RequestError(f"unknown field {name}.{key}", f"{name}.{key}", "unknown_parameter")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    where = f"{name}.json_schema"
    inner = value.get("json_schema")
    if not isinstance(inner, dict):
        raise RequestError(f"{where} must be an object", where)
    for key in inner:
        # The first two are notes for the model, the third is done in any case.
        if key not in ("name", "description", "strict", "schema"):
            raise RequestError(
                f"unknown field {where}.{key}", f"{where}.{key}", "unknown_parameter"
            )
    schema = inner.get("schema")
    if not isinstance(schema, dict):
        raise RequestError(f"{where}.schema must be an object, a JSON schema", f"{where}.schema")
    return schema


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    name = "logit_bias"
    if not isinstance(value, dict) or len(value) > MAX_BIASED_TOKENS:
        raise RequestError(
            f"{name} must be an object of up to {MAX_BIASED_TOKENS} token ids and their bias", name
        )
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 11):
            raise RequestError(f"{name} has the key {shown(key)}; allowed: token ids", name)
        if not is_number(bias) or abs(bias) > MAX_LOGIT_BIAS:
            raise RequestError(
                f"{name} of token {key} is {shown(bias)}; allowed: a number from "
                f"{-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}",
                name,
            )
        biases[int(key)] = float(bias)
    return biases


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
    if (
        not isinstance(value, list)
        or len(value) > MAX_STOP_TOKENS
        or not all(is_integer(item) for item in value)
    ):
        raise RequestError(
            f"stop_token_ids must be a list of up to {MAX_STOP_TOKENS} token ids", "stop_token_ids"
        )
    return frozenset(value)


def _stream_options(value: Any, stream: bool) -> tuple[bool, bool]:
    """Return include_usage and continuous_usage_stats, which are independent."""
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


def _xargs(value: Any) -> tuple[str, str, float, int]:
    """Return client_id, call_id ('' if absent), weight, and expected_output_tokens (0 if absent)."""
    if value is None:
        return "", "", 1.0, 0
    if not isinstance(value, dict):
        raise RequestError("vllm_xargs must be an object", "vllm_xargs")
    for key in value:
        if key not in ("client_id", "call_id", "weight", "expected_output_tokens"):
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
    if not is_number(weight) or weight <= 0:
        raise RequestError("vllm_xargs.weight must be a number over 0", "vllm_xargs.weight")
    expected = value.get("expected_output_tokens", 0)
    if not isinstance(expected, int) or isinstance(expected, bool) or expected < 0:
        where = "vllm_xargs.expected_output_tokens"
        raise RequestError(f"{where} must be a whole number, 0 or more", where)
    return ids[0], ids[1], float(weight), expected
