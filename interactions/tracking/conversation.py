"""Conversation keys, by which a call is recognised as the continuation of an earlier one.

The next call of an agent repeats the messages of the previous one, its answer, and everything
since. So every prefix of a conversation that ends with an answer has a key, a hash chained over its
messages, and each answer extends the chain of its call by one. Where an answer's content is not known,
because another process carried it, the prompt alone has a key of another kind: the next call has
the same messages before its last answer. A call with tool results refers to the call that requested
the tools by the ids of the tool calls.

Messages are normalised the way clients repeat them: whitespace around a text, the order of keys in
the arguments of a tool call, and null instead of an empty text or of no arguments make no difference.
System and developer messages are skipped, because they change when a conversation is handed to another
agent, and when they contain the time. Within one run a key finds the call that is continued; among the
runs of one app and user it finds the run (:mod:`fairserve.interactions.tracking.run_index`).

Cost: one pass over the text, in C. Weakness: clients that shorten or rewrite their history are
recognised by their tool results only, or not at all; text completions are never recognised. By the
prompt alone, two calls with the same prompt are not distinguished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

_IGNORED_ROLES = ("system", "developer")
_KEY_BYTES = 8
_PROMPT_END = b"?"  # no message is encoded like this


class Conversation:
    """The messages of one chat request in OpenAI's shape; malformed ones produce no key."""

    __slots__ = ("_hasher", "_prompt", "answered_prompts", "history", "tool_results")

    def __init__(self, messages: Iterable[Mapping[str, Any]]) -> None:
        hasher = self._hasher = hashlib.blake2b(digest_size=_KEY_BYTES)
        history: list[int] = []
        prompts: list[int] = []
        results: list[int] = []
        empty = True
        for message in messages:
            role = message.get("role")
            if role in _IGNORED_ROLES:
                continue
            if role == "assistant" and not empty:
                prompts.append(_prompt_key(hasher))
            hasher.update(_encoded(message))
            empty = False
            if role == "assistant":
                history.append(_key(hasher.digest()))
                results = []
            elif role == "tool":
                results += _tool_keys([message.get("tool_call_id")])
        self._prompt = () if empty else (_prompt_key(hasher),)
        self.history = tuple(reversed(history))
        """Keys of the conversations that the request may continue, longest first."""
        self.answered_prompts = tuple(reversed(prompts))
        """Keys of the same conversations without their last answer, longest first."""
        self.tool_results = tuple(dict.fromkeys(results))
        """Keys of the tool calls whose results arrived after the last answer."""

    @property
    def last_answer(self) -> tuple[int, ...]:
        """Return the keys of the last answer in the request: by its content, and by its prompt."""
        return last_answer(self.history, self.answered_prompts)

    def answered(self, answers: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the keys of the conversation plus each answer, then those of the requested tools.

        ``answers`` are assistant messages, one per sample. Without any, their content is not known: the
        key is that of the prompt.
        """
        keys: list[int] = []
        tools: list[int] = []
        for answer in answers:
            hasher = self._hasher.copy()
            hasher.update(_encoded({**answer, "role": "assistant"}))
            keys.append(_key(hasher.digest()))
            tools += _tool_keys(call.get("id") for call in _tool_calls(answer))
        return tuple(dict.fromkeys(keys + tools)) or self._prompt


def last_answer(history: tuple[int, ...], answered_prompts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the keys of the last answer of a conversation with these keys, longest first."""
    return history[:1] + answered_prompts[:1]


def _prompt_key(hasher: hashlib.blake2b) -> int:
    ended = hasher.copy()
    ended.update(_PROMPT_END)
    return _key(ended.digest())


def _key(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def _tool_keys(ids: Iterable[Any]) -> list[int]:
    return [
        _key(hashlib.blake2b(each.encode(), digest_size=_KEY_BYTES, person=b"tool").digest())
        for each in ids
        if isinstance(each, str) and each
    ]


def _encoded(message: Mapping[str, Any]) -> bytes:
    parts = [str(message.get("role")), _text(message.get("content"))]
    for call in _tool_calls(message):
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        arguments = _arguments(function.get("arguments"))
        parts += [str(call.get("id")), str(function.get("name")), arguments]
    if message.get("tool_call_id") is not None:
        parts.append(str(message["tool_call_id"]))
    # Each part is preceded by its length, so that no text can be mistaken for two.
    return "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass") + b"\n"


def _tool_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return [each for each in calls if isinstance(each, Mapping)] if isinstance(calls, list) else []


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return _plain(content)
    texts = [
        part["text"] if isinstance(part, Mapping) and isinstance(part.get("text"), str) else None
        for part in content
    ]
    if None in texts:
        return _plain(content)
    return "".join(text for text in texts if text is not None).strip()


def _arguments(arguments: Any) -> str:
    if not arguments:  # clients send null, nothing or an empty object for an empty text
        return "{}"
    if not isinstance(arguments, str):
        return _plain(arguments)
    try:
        return _plain(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments.strip()


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
