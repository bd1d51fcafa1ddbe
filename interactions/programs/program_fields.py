"""Reading a declared program field by field: what is wrong is named with its path and what is allowed.

Before any field is read, :func:`require_bounded` walks the whole structure without recursion and stops
at its limits, so that a huge or deep declaration costs no more than an allowed one to reject.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 32
SHOWN_CHARS = 40


class ProgramError(ValueError):
    """The declared program is invalid; ``path`` is the position: ``nodes[3].map.over``, or empty."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def shown(value: object) -> str:
    """Return the beginning of a value, escaped for an error message."""
    text = repr(value[: SHOWN_CHARS + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARS + 2 else f"{text[:SHOWN_CHARS]}..."


def require_bounded(plain: object, max_chars: int, path: str) -> None:
    """Reject more text, or deeper nesting, than allowed. Keys count, and every value is one more."""
    used = 0
    level: list[object] = [plain]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ProgramError(path, f"is nested deeper than {MAX_DEPTH} levels")
        below: list[object] = []
        texts: list[str] = []
        for value in level:
            used += 1 + (len(value) if isinstance(value, str) else 0)
            more = len(value) if isinstance(value, Mapping | list) else 0
            if used + len(below) + more > max_chars:
                raise ProgramError(path, f"has over {max_chars} characters, the most allowed")
            if isinstance(value, str):
                texts.append(value)
            elif isinstance(value, Mapping):
                names = [name for name in value if isinstance(name, str)]
                texts += names
                used += sum(map(len, names))
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
        for text in texts:
            if not text.isascii():
                _require_text(text, path)
        level = below


def _require_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ProgramError(
            path, f"has half a surrogate pair, {text[error.start]!a}, which is no text"
        ) from None


class Fields:
    """An object of the declaration at ``path``, whose fields are read by name."""

    def __init__(self, plain: object, path: str, allowed: tuple[str, ...]) -> None:
        """Raise ProgramError if ``plain`` is no object or has a field that is not allowed."""
        self.path = path
        if not isinstance(plain, Mapping):
            raise ProgramError(path, f"must be an object, not {kind(plain)}")
        self.plain: Mapping[str, Any] = plain
        for name in plain:
            if name not in allowed:
                raise ProgramError(
                    self.at(name if isinstance(name, str) else str(name)),
                    f"is not known here; allowed: {', '.join(allowed)}",
                )

    def at(self, name: str) -> str:
        """Return the path of a field."""
        name = name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}..."
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, message: str) -> ProgramError:
        """Return an error at a field."""
        return ProgramError(self.at(name), message)

    def text(self, name: str, max_chars: int) -> str | None:
        """Return a printable text without surrounding space, or None if it is absent."""
        value = self.plain.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, f"must be a string, not {kind(value)}")
        if not 0 < len(value) <= max_chars:
            raise self.wrong(name, f"has {len(value)} characters; allowed: 1 to {max_chars}")
        if not value.isprintable() or value != value.strip():
            raise self.wrong(name, f"is {shown(value)}; allowed: printable, no space around it")
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number in a range, or None if it is absent."""
        value = self.plain.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(name, f"must be a whole number, not {kind(value)}")
        if not least <= value <= most:
            raise self.wrong(name, f"is {_number(value)}; allowed: {least} to {most}")
        return value

    def list(self, name: str) -> list[Any] | None:
        """Return a list, or None if it is absent."""
        value = self.plain.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, f"must be a list, not {kind(value)}")
        return value


def kind(value: object) -> str:
    """Return the type of a JSON value, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, Mapping):
        return "an object"
    kinds: dict[type, str] = {str: "a string", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), type(value).__name__)


def _number(value: int) -> str:
    return str(value) if abs(value) < 10**18 else "out of range"
