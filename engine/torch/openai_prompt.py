"""Reads ``messages`` of a chat and ``prompt`` of a completion."""

from __future__ import annotations

from typing import Any

from fairserve.engine.torch.openai_fields import RequestError, is_integer

_MESSAGE_KEYS = {"role", "content", "name"}


def read_messages(value: Any) -> list[dict[str, str]]:
    """Return ``messages`` with their contents as text. Raises RequestError."""
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


def read_prompt(value: Any) -> str | list[int]:
    """Return ``prompt``, a text or token ids. Raises RequestError."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(is_integer(item) for item in value):
        return value
    raise RequestError(
        "prompt must be a string or a list of token ids, and not empty; "
        "several prompts are several calls",
        "prompt",
    )
