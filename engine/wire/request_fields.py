"""Table of the request fields that are sent to each kind of server.

A field outside the table never reaches a worker. A field is sent to the kinds that honour it. For
the others it is omitted if its value is neutral; otherwise they are not candidates for the call. A
field that costs more than its tokens (beams, ``best_of``, log probabilities of the prompt) is sent
to no server, nor is one that the platform sets, or that affects the worker itself (priorities,
transfers of KV cache, options of processors, templates).

The platform validates values (:mod:`fairserve.platform.serving.completions.schemas`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

ServerKind = Literal["embedded", "demo", "vllm", "openai"]
"""Kind of server: our torch worker, the same with the demo model, vLLM, or any other OpenAI-compatible
one."""
SERVER_KINDS: frozenset[ServerKind] = frozenset(get_args(ServerKind))

Kinds = frozenset[ServerKind]
_EVERY: Kinds = SERVER_KINDS
_VLLM: Kinds = frozenset({"vllm"})
_OPENAI: Kinds = frozenset({"openai"})
_DIALECT: Kinds = frozenset({"embedded", "demo", "vllm"})
_FULL: Kinds = frozenset({"vllm", "openai"})
_TOOLS: Kinds = _FULL | {"demo"}
_NOBODY: Kinds = frozenset()


Listed = Mapping[str, Any]
"""Fields that an object may have: each with None, or with those of the object that it holds."""


@dataclass(frozen=True, slots=True)
class FieldRule:
    """Rule of one field."""

    kinds: Kinds
    """Kinds of servers that receive the field."""
    neutral: tuple[Any, ...] = ()
    """Values without an effect, besides null; no server has to honour them."""
    described: bool = False
    """True for a field for the platform: any value is allowed, and no server receives it."""
    internal: bool = False
    """True for a field that the platform sets, or that affects the worker: no call may have it."""


_COMMON: Mapping[str, FieldRule] = {
    "model": FieldRule(_EVERY),
    "max_tokens": FieldRule(_EVERY),
    "temperature": FieldRule(_EVERY),
    "top_p": FieldRule(_EVERY),
    "n": FieldRule(_EVERY),
    "seed": FieldRule(_EVERY),
    "stop": FieldRule(_EVERY),
    "stream": FieldRule(_EVERY),
    "stream_options": FieldRule(_EVERY),
    "presence_penalty": FieldRule(_EVERY),
    "frequency_penalty": FieldRule(_EVERY),
    "logit_bias": FieldRule(_EVERY),
    "logprobs": FieldRule(_EVERY),
    # fields of OpenAI for the platform
    "user": FieldRule(_NOBODY, described=True),
    "metadata": FieldRule(_NOBODY, described=True),
    "safety_identifier": FieldRule(_NOBODY, described=True),
    "prompt_cache_key": FieldRule(_NOBODY, described=True),
    "store": FieldRule(_NOBODY, (False,)),
    "service_tier": FieldRule(_NOBODY, described=True),
    # fields of vLLM
    "top_k": FieldRule(_DIALECT, (-1, 0)),
    "min_p": FieldRule(_DIALECT, (0,)),
    "min_tokens": FieldRule(_DIALECT, (0,)),
    "stop_token_ids": FieldRule(_DIALECT, ([],)),
    "ignore_eos": FieldRule(_DIALECT, (False,)),
    "cache_salt": FieldRule(_DIALECT),
    "repetition_penalty": FieldRule(_DIALECT, (1,)),
    "skip_special_tokens": FieldRule(_DIALECT, (True,)),
    "spaces_between_special_tokens": FieldRule(_DIALECT, (True,)),
    "include_stop_str_in_output": FieldRule(_DIALECT, (False,)),
    "bad_words": FieldRule(_DIALECT, ([],)),
    "allowed_token_ids": FieldRule(_DIALECT),
    "structured_outputs": FieldRule(_DIALECT),
    # fields that cost more than their tokens
    "best_of": FieldRule(_NOBODY, (1,)),
    "use_beam_search": FieldRule(_NOBODY, (False,)),
    "length_penalty": FieldRule(_NOBODY, (1,)),
    "echo": FieldRule(_NOBODY, (False,)),
    "prompt_logprobs": FieldRule(_NOBODY),
    # fields that clients may not set
    **dict.fromkeys(
        (
            "chat_template",
            "data_parallel_rank",
            "ec_transfer_params",
            "extra_args",
            "kv_transfer_params",
            "logits_processors",
            "media_io_kwargs",
            "mm_processor_kwargs",
            "priority",
            "prompt_embeds",
            "request_id",
            "session_id",
            "vllm_xargs",
        ),
        FieldRule(_NOBODY, internal=True),
    ),
}

CHAT_FIELDS: Mapping[str, FieldRule] = {
    **_COMMON,
    "messages": FieldRule(_EVERY),
    "max_completion_tokens": FieldRule(_EVERY),
    "response_format": FieldRule(_EVERY),
    "top_logprobs": FieldRule(_EVERY),
    "tools": FieldRule(_TOOLS, ([],)),
    "tool_choice": FieldRule(_TOOLS, ("none",)),
    "parallel_tool_calls": FieldRule(_TOOLS, (True, False)),
    "reasoning_effort": FieldRule(_FULL),
    "verbosity": FieldRule(_OPENAI),
    "modalities": FieldRule(_NOBODY, (["text"],)),
    "functions": FieldRule(_NOBODY, ([],)),
    "function_call": FieldRule(_NOBODY, ("none",)),
    "include_reasoning": FieldRule(_VLLM, (True,)),
    "thinking_token_budget": FieldRule(_VLLM),
    "chat_template_kwargs": FieldRule(_DIALECT, ({},)),
    "add_generation_prompt": FieldRule(_DIALECT, (True,)),
    "continue_final_message": FieldRule(_DIALECT, (False,)),
    "add_special_tokens": FieldRule(_DIALECT, (False,)),
}
"""Rules of the fields of ``/v1/chat/completions``."""

TEXT_FIELDS: Mapping[str, FieldRule] = {
    **_COMMON,
    "prompt": FieldRule(_EVERY),
    "response_format": FieldRule(_DIALECT, ({"type": "text"},)),
    "suffix": FieldRule(_NOBODY, ("",)),
    "add_special_tokens": FieldRule(_DIALECT, (True,)),
}
"""Rules of the fields of ``/v1/completions``."""

_POOLING: Mapping[str, FieldRule] = {
    "model": FieldRule(_EVERY),
    # fields for the platform
    "user": FieldRule(_NOBODY, described=True),
    "metadata": FieldRule(_NOBODY, described=True),
    "safety_identifier": FieldRule(_NOBODY, described=True),
    "service_tier": FieldRule(_NOBODY, described=True),
    # fields of vLLM
    "cache_salt": FieldRule(_VLLM),
    "truncate_prompt_tokens": FieldRule(_VLLM),
    "truncation_side": FieldRule(_VLLM, ("right",)),
    "use_activation": FieldRule(_VLLM),
    # fields that cost more than their tokens, or that change the form of the answer
    "padding": FieldRule(_NOBODY, ("do_not_pad",)),
    "embed_dtype": FieldRule(_NOBODY, ("float32",)),
    "endianness": FieldRule(_NOBODY, ("native",)),
    # fields that clients may not set
    **dict.fromkeys(
        ("chat_template", "chat_template_kwargs", "mm_processor_kwargs", "priority", "request_id"),
        FieldRule(_NOBODY, internal=True),
    ),
}

EMBEDDING_FIELDS: Mapping[str, FieldRule] = {
    **_POOLING,
    "input": FieldRule(_EVERY),
    "encoding_format": FieldRule(_EVERY),
    "dimensions": FieldRule(_EVERY),
    "add_special_tokens": FieldRule(_DIALECT, (True,)),
}
"""Rules of the fields of ``/v1/embeddings``."""

RERANK_FIELDS: Mapping[str, FieldRule] = {
    **_POOLING,
    "query": FieldRule(_EVERY),
    "documents": FieldRule(_EVERY),
    "top_n": FieldRule(_EVERY),
    "return_documents": FieldRule(_NOBODY, described=True),
    "max_tokens_per_doc": FieldRule(_VLLM, (0,)),
}
"""Rules of the fields of ``/v1/rerank``. The platform honours ``return_documents`` itself."""

_FIELDS: Mapping[str, Mapping[str, FieldRule]] = {
    "/v1/chat/completions": CHAT_FIELDS,
    "/v1/completions": TEXT_FIELDS,
    "/v1/embeddings": EMBEDDING_FIELDS,
    "/v1/rerank": RERANK_FIELDS,
}

MESSAGE_FIELDS: Mapping[str, FieldRule] = {
    "role": FieldRule(_EVERY),
    "content": FieldRule(_EVERY),
    "name": FieldRule(_EVERY),
    "tool_calls": FieldRule(_TOOLS, ([],)),
    "tool_call_id": FieldRule(_TOOLS),
    "refusal": FieldRule(_FULL),
    "reasoning": FieldRule(_FULL),
    "reasoning_content": FieldRule(_FULL),
    "audio": FieldRule(_NOBODY),
    "function_call": FieldRule(_NOBODY),
}
"""Rules of the fields of a message. Others are left out (:func:`_listed_message`)."""

PART_KINDS: Mapping[str, Kinds] = {
    "text": _EVERY,
    "refusal": _FULL,
    "image_url": _FULL,
    "video_url": _VLLM,
    "audio_url": _VLLM,
    "input_audio": _FULL,
}
"""Kinds of servers that take a part of a message's content, by ``type``, which names its field, too."""

_ADDRESSED = {"url": None, "detail": None}
_PART_FIELDS: Mapping[str, Listed] = {
    "image_url": _ADDRESSED,
    "video_url": _ADDRESSED,
    "audio_url": _ADDRESSED,
    "input_audio": {"data": None, "format": None},
}
"""Fields of the objects in parts."""
_TOOL_CALL_FIELDS: Listed = {
    "id": None,
    "type": None,
    "index": None,
    "function": {"name": None, "arguments": None},
}

STREAM_OPTION_KINDS: Mapping[str, Kinds] = {"continuous_usage_stats": _DIALECT}
"""Kinds of servers for stream options that not every kind honours."""


class RequestFieldError(ValueError):
    """No server accepts a field; ``field`` is its path, such as ``messages[0].audio``."""

    def __init__(self, field: str, message: str, code: str) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


@dataclass(frozen=True, slots=True)
class FieldDemand:
    """A field of a call that only some kinds of servers honour."""

    field: str
    kinds: Kinds


def fields_of(path: str) -> Mapping[str, FieldRule]:
    """Return the table for an endpoint."""
    return _FIELDS[path]


def demands(path: str, body: Mapping[str, Any]) -> list[FieldDemand]:
    """Return the fields of a request that not every kind of server honours, in their order.

    ``body`` has the types that the platform validates. Raises RequestFieldError for a field that no
    server accepts.
    """
    found = list(_demands(fields_of(path), body, ""))
    for number, message in enumerate(body.get("messages") or ()):
        where = f"messages[{number}]."
        found += _demands(MESSAGE_FIELDS, message, where)
        content = message.get("content")
        if isinstance(content, list):
            found += _part_demands(content, f"{where}content")
    for option, kinds in STREAM_OPTION_KINDS.items():
        if (body.get("stream_options") or {}).get(option):
            found.append(FieldDemand(f"stream_options.{option}", kinds))
    return found


def passed_on(path: str, kind: ServerKind, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a request's body that is sent to a server of this kind."""
    passed = _passed_on(fields_of(path), kind, body)
    messages = passed.get("messages")
    if isinstance(messages, list):
        passed["messages"] = [_passed_on(MESSAGE_FIELDS, kind, message) for message in messages]
    return passed


_NESTED: Mapping[str, int] = {
    "stream_options": 1,
    "response_format": 2,
    "structured_outputs": 1,
    "chat_template_kwargs": 1,
    "tools": 2,
    "tool_choice": 2,
}
"""Levels of objects in a field whose nulls are left out. Deeper ones are schemas, whose nulls count."""
MAX_NESTED_FIELDS = 64
"""Fields of such an object that are read. None has so many, so that one with more is rejected."""


def listed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without the fields that are null, which count as absent, and its messages with
    the fields that are listed.

    The content of a message may be null. Any value may be passed; nothing is changed in place.
    """
    plain = {name: value for name, value in body.items() if value is not None}
    for name in _NESTED.keys() & plain.keys():
        plain[name] = _cleared(plain[name], _NESTED[name])
    messages = plain.get("messages")
    if isinstance(messages, list):
        plain["messages"] = [_listed_message(message) for message in messages]
    return plain


def _listed_message(message: Any) -> Any:
    """Return a message with the fields that are listed, in its parts and tool calls as well.

    Clients send back the answers of any server, with fields of its own, and mark what they send for
    other servers. These fields reach no worker, but an unknown type of a part is rejected.
    """
    if not isinstance(message, dict):
        return message
    if None in message.values() or not message.keys() <= MESSAGE_FIELDS.keys():
        message = {
            name: value
            for name, value in message.items()
            if name in MESSAGE_FIELDS and (value is not None or name == "content")
        }
    if isinstance(parts := message.get("content"), list):
        message = {**message, "content": [_listed_part(part) for part in parts]}
    if isinstance(calls := message.get("tool_calls"), list):
        message = {**message, "tool_calls": [_listed_tool_call(call) for call in calls]}
    return message


def _listed_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in PART_KINDS:
        return part
    return _listed(part, {"type": None, kind: _PART_FIELDS.get(kind)})


def _listed_tool_call(call: Any) -> Any:
    """Return a tool call; arguments that are absent are those of a call without any."""
    call = _listed(call, _TOOL_CALL_FIELDS)
    if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
        call["function"] = {"arguments": "{}", **function}
    return call


def _listed(value: Any, fields: Listed | None) -> Any:
    """Return an object with the fields that are listed and not null."""
    if fields is None or not isinstance(value, dict):
        return value
    return {
        name: _listed(each, fields[name])
        for name, each in value.items()
        if each is not None and name in fields
    }


def _cleared(value: Any, levels: int) -> Any:
    """Return a value whose objects, down to a level, have no field that is null, and not too many."""
    if isinstance(value, list):
        return [_cleared(each, levels) for each in value]
    if not isinstance(value, dict):
        return value
    fields = islice(value.items(), MAX_NESTED_FIELDS)
    if levels == 1:
        return {name: each for name, each in fields if each is not None}
    return {
        name: _cleared(each, levels - 1) if isinstance(each, dict) else each
        for name, each in fields
        if each is not None
    }


def _passed_on(
    rules: Mapping[str, FieldRule], kind: ServerKind, values: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if name in rules and kind in rules[name].kinds and (value is not None or name == "content")
    }


def _demands(
    rules: Mapping[str, FieldRule], values: Mapping[str, Any], where: str
) -> Iterator[FieldDemand]:
    for name, value in values.items():
        if value is None:  # as good as absent, whatever the field is
            continue
        rule = rules.get(name)
        field = where + name
        if rule is None:
            raise RequestFieldError(
                field,
                f"{shown(field)} is unknown; leave it out (docs/guide/apps.md lists the fields that"
                " calls may have)",
                "unknown_parameter",
            )
        if rule.internal:
            text = f"{field} is not for clients to set; leave it out"
            raise RequestFieldError(field, text, "invalid_value")
        if rule.described or rule.kinds == _EVERY or _is_neutral(rule, value):
            continue
        if not rule.kinds:
            allowed = "".join(f", {each!r}" for each in rule.neutral)
            raise RequestFieldError(
                field,
                f"{field} is {shown(value)}; allowed: absent, null{allowed}",
                "unsupported_parameter",
            )
        yield FieldDemand(field, rule.kinds)


def _part_demands(parts: list[Any], where: str) -> Iterator[FieldDemand]:
    for number, part in enumerate(parts):
        kind = part.get("type")
        field = f"{where}[{number}]"
        kinds = PART_KINDS.get(kind) if isinstance(kind, str) else None
        if kinds is None:
            raise RequestFieldError(
                f"{field}.type",
                f"{field}.type is {shown(kind)}; allowed: {', '.join(PART_KINDS)}",
                "unsupported_parameter",
            )
        if kinds != _EVERY:
            yield FieldDemand(field, kinds)


def _is_neutral(rule: FieldRule, value: Any) -> bool:
    """Return whether a value is neutral; true is not 1."""
    return any(
        isinstance(each, bool) == isinstance(value, bool) and each == value for each in rule.neutral
    )


def shown(value: Any) -> str:
    """Return a client's value for a message: short, on one line."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text[:61])
    return text if len(text) <= 60 else text[:57] + "..."
