"""Prompts and answers as attributes of a span: JSON in the form of the GenAI conventions, bounded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CUT = "..."


def input_text(body: Mapping[str, Any], max_chars: int) -> str:
    """Return the last messages of a request within ``max_chars`` characters of content, as JSON."""
    prompt = body.get("prompt")
    messages = body.get("messages") or [{"role": "user", "content": prompt}]
    left, kept = max_chars, []
    for message in reversed(messages):
        if left <= 0:
            break
        parts, left = _within(_parts(message), left)
        kept.append({"role": message.get("role", "user"), "parts": parts})
    return json.dumps(kept[::-1], ensure_ascii=False)


def output_text(choices: Sequence[Mapping[str, Any]], max_chars: int) -> str:
    """Return the choices of an answer within ``max_chars`` characters of content, as JSON."""
    left, kept = max_chars, []
    for choice in choices:
        message = choice.get("message") or {"role": "assistant", "content": choice.get("text")}
        parts, left = _within(_parts(message), left)
        reason = choice.get("finish_reason") or ""
        kept.append({"role": "assistant", "parts": parts, "finish_reason": reason})
    return json.dumps(kept, ensure_ascii=False)


def _parts(message: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the parts of a message; images and other media are named by their type only."""
    content = message.get("content")
    if message.get("role") == "tool":
        yield {
            "type": "tool_call_response",
            "id": message.get("tool_call_id", ""),
            "response": _text(content),
        }
    elif isinstance(content, list):
        for part in content:
            kind = part.get("type", "") if isinstance(part, dict) else ""
            if kind == "text":
                yield {"type": "text", "content": _text(part.get("text"))}
            else:
                yield {"type": str(kind)}
    elif content:
        yield {"type": "text", "content": _text(content)}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "tool_call",
            "id": call.get("id", ""),
            "name": function.get("name", ""),
            "arguments": _text(function.get("arguments")),
        }


def _within(parts: Iterable[dict[str, Any]], left: int) -> tuple[list[dict[str, Any]], int]:
    """Return the parts whose texts fit into ``left`` characters, the last one cut, and the rest."""
    kept = []
    for part in parts:
        if left <= 0:
            break
        for name in ("content", "response", "arguments"):
            text = part.get(name)
            if text is not None:
                part[name] = text if len(text) <= left else text[:left] + CUT
                left -= len(text)
        kept.append(part)
    return kept, left


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
