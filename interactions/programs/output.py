"""Output of a program's node as templates, conditions and maps read it: text, and fields of JSON.

An output is a text; that of a mapped node is the list of its instances' texts; that of a skipped node
is the empty text, and null where JSON is requested. A field is read by a path such as ``plan.steps.0``:
keys of objects, positions in lists. A text is parsed as JSON only if a path needs it; the memo keeps
parsed values within one event, so that a thousand children of a planner parse its output once.

Weakness: a text must be JSON as a whole; a model that wraps it in a code fence or in words is not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_PATH_PARTS = 32
MAX_PATH_CHARS = 512

Path = tuple[str, ...]
"""Keys and positions; a part of digits is a position where it meets a list."""


class OutputFieldError(ValueError):
    """The output has no such field."""


class PathError(ValueError):
    """The declared text is not a valid path."""


@dataclass(frozen=True, slots=True)
class Output:
    """One text, or with ``mapped`` those of the instances; no text at all if the node was skipped."""

    texts: tuple[str, ...]
    size_bytes: int
    """Bytes of all texts together in UTF-8."""
    mapped: bool = False

    @property
    def skipped(self) -> bool:
        """Return whether the node was skipped, so that the output is empty."""
        return not self.mapped and not self.texts


SKIPPED: Final = Output((), 0)


class JsonMemo:
    """Texts parsed within one event, bounded by their characters; the oldest leave first."""

    def __init__(self, max_chars: int = 4_194_304) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._parsed: dict[str, Any] = {}

    def parse(self, text: str) -> Any:
        """Return the value of a JSON text. Raises FieldError."""
        if text in self._parsed:
            value = self._parsed[text]
        else:
            try:
                value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
            except (ValueError, RecursionError):
                value = _NOT_JSON
            self._chars += len(text)
            self._parsed[text] = value
            while self._chars > self._max_chars and len(self._parsed) > 1:
                oldest = next(iter(self._parsed))
                del self._parsed[oldest]
                self._chars -= len(oldest)
        if value is _NOT_JSON:
            raise OutputFieldError("is not JSON")
        return value


_NOT_JSON: Final = object()


def parse_path(text: str) -> Path:
    """Parse a path such as ``plan.steps.0``. Raises PathError."""
    parts = tuple(text.split("."))
    if len(text) > MAX_PATH_CHARS or len(parts) > MAX_PATH_PARTS:
        raise PathError(
            f"a path has at most {MAX_PATH_PARTS} parts and {MAX_PATH_CHARS} characters"
        )
    if not all(parts):
        raise PathError(
            "a path has keys and positions with single dots between, as in plan.steps.0"
        )
    return parts


def read(output: Output, path: Path, memo: JsonMemo) -> Any:
    """Read the value at a path; without one the text, or the list of texts. Raises FieldError."""
    if output.skipped:
        return None
    if output.mapped:
        if not path:
            return list(output.texts)
        return read_value(_step(output.texts, path[0], path[:1]), path[1:], memo, path[:1])
    return read_value(output.texts[0], path, memo)


def read_value(value: Any, path: Path, memo: JsonMemo, before: Path = ()) -> Any:
    """Read the value at a path below ``value``; a text on top is parsed as JSON. Raises FieldError."""
    if not path:
        return value
    if isinstance(value, str):
        value = memo.parse(value)
    for depth, part in enumerate(path, start=1):
        value = _step(value, part, before + path[:depth])
    return value


def read_list(value: Any, memo: JsonMemo) -> list[Any]:
    """Return the items of a map: a list, or a text that is a JSON list. Raises FieldError."""
    if isinstance(value, str):
        value = memo.parse(value)
    if not isinstance(value, list):
        raise OutputFieldError(f"is {_kind(value)}, not a JSON list")
    return value


def text_of(value: Any) -> str:
    """Return a string as it is, anything else as compact JSON. Raises FieldError."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise OutputFieldError("is nested too deep") from None


def sized(text: str) -> tuple[str, int]:
    """Return a text that UTF-8 can encode, and its bytes; half a surrogate pair becomes U+FFFD."""
    if text.isascii():
        return text, len(text)
    try:
        return text, len(text.encode())
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return whole, len(whole.encode())


def _step(value: Any, part: str, path: Path) -> Any:
    if isinstance(value, dict):
        if part in value:
            return value[part]
        raise OutputFieldError(f"has no field {'.'.join(path)}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if part.isascii() and part.isdigit():
            if int(part) < len(value):
                return value[int(part)]
            raise OutputFieldError(
                f"has no field {'.'.join(path)}: the list has {len(value)} items"
            )
        raise OutputFieldError(f"has no field {'.'.join(path)}: a list is read by position")
    raise OutputFieldError(f"has no field {'.'.join(path)}: it is in {_kind(value)}")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    kinds = {str: "a text", int: "a number", float: "a number", dict: "an object", list: "a list"}
    return kinds[type(value)]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is out of range")
    return number
