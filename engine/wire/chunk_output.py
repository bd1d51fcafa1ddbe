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
    if not isinstance(delta, dict):
        return False
    # A generator would take three times as long, for every chunk.
    for name, value in delta.items():  # noqa: SIM110
        if value and name != "role":
            return True
    return False


def output_size(chunk: dict[str, Any]) -> tuple[int, int]:
    """Return the number of choices with output, and the bytes of their text, tool calls included."""
    chunks = size = 0
    for choice in chunk.get("choices") or ():
        if has_output(choice):
            chunks += 1
            size += _bytes(choice)
    return chunks, size


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, list):
        return sum(map(_bytes, value))
    if isinstance(value, dict):
        size = 0
        for name, each in value.items():
            if each and name in _TEXTS:
                size += _bytes(each)
        return size
    return 0


_TEXTS = frozenset(
    {"text", "delta", "message", "content", "reasoning", "reasoning_content", "thinking"}
    | {"refusal", "tool_calls", "function_call", "function", "name", "arguments"}
)
