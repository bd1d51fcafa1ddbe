"""Classifies a chunk of a response: output, its end, or neither."""

from __future__ import annotations

from typing import Any


def has_content(choice: Any) -> bool:
    """Return whether a choice of a chunk carries output or its end; the role alone is neither."""
    return has_output(choice) or (
        isinstance(choice, dict) and choice.get("finish_reason") is not None
    )


def has_output(choice: Any) -> bool:
    """Return whether a choice of a chunk carries output: at least one token."""
    if not isinstance(choice, dict):
        return False
    if choice.get("text"):
        return True
    delta = choice.get("delta") or choice.get("message")  # the latter in an answer of one object
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def output_chunks(chunk: dict[str, Any]) -> int:
    """Return the number of choices with output: a lower bound of the chunk's tokens."""
    return sum(map(has_output, chunk.get("choices") or ()))


def output_bytes(chunk: dict[str, Any]) -> int:
    """Return the number of bytes of the chunk's text, tool calls included."""
    return sum(_bytes(choice) for choice in chunk.get("choices") or () if isinstance(choice, dict))


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    if isinstance(value, dict):
        return sum(_bytes(each) for name, each in value.items() if name in _TEXTS)
    return 0


_TEXTS = frozenset(
    {"text", "delta", "message", "content", "reasoning", "reasoning_content", "thinking"}
    | {"refusal", "tool_calls", "function_call", "function", "name", "arguments"}
)
