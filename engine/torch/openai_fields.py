"""Reads the fields of a request's body one by one; each error names its field."""

from __future__ import annotations

import math
from typing import Any

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "priority": (0,),
    "repetition_penalty": (1,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields that this engine cannot honour, with their neutral values (null is neutral, too)."""

_DESCRIPTIVE = ("user", "metadata", "safety_identifier", "prompt_cache_key")
_SHOWN_CHARACTERS = 60


class RequestError(Exception):
    """The request is not valid, or needs a feature that this engine lacks."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class Fields:
    """The fields of a body, read one by one; null counts as absent. Raises RequestError."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._left = dict(body)

    def take(self, name: str) -> Any:
        """Return the value as it is; None if absent."""
        return self._left.pop(name, None)

    def text(self, name: str, default: str | None) -> str:
        """Return a string."""
        value = self.take(name)
        if value is None:
            return default or ""
        if not isinstance(value, str):
            raise RequestError(f"{name} must be a string", name)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return true or false; ``default`` if absent."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise RequestError(f"{name} is {shown(value)}; allowed: true, false", name)
        return value

    def integer(self, name: str, low: int, high: int | None) -> int | None:
        """Return a whole number from ``low`` to ``high``; None if absent."""
        value = self.take(name)
        if value is None:
            return None
        if not is_integer(value) or value < low or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise RequestError(
                f"{name} is {shown(value)}; allowed: a whole number, {allowed}", name
            )
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """Return a finite number from ``low`` to ``high``; None if absent."""
        value = self.take(name)
        if value is None:
            return None
        if not is_number(value) or not low <= value <= high:
            raise RequestError(
                f"{name} is {shown(value)}; allowed: a number from {low:g} to {high:g}", name
            )
        return float(value)

    def reject_the_rest(self) -> None:
        """Raise RequestError for an unread field, unless it is neutral or describes the caller."""
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


def shown(value: Any) -> str:
    """Return a value for an error message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def is_integer(value: Any) -> bool:
    """Return True for a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return True for a finite number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _same(left: Any, right: Any) -> bool:
    """Compare so that true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
