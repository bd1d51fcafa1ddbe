"""Parse the JSON objects that a worker sends.

A byte that is no UTF-8, or half of an emoji (a lone UTF-16 surrogate), is replaced by U+FFFD: it costs
that character, not the answer. Values that are nested too deeply to be written again are rejected.

Weakness: a value with such a character is rejected if it has over ``MAX_REPAIRED_BYTES``, or over
``MAX_REPAIRED_ESCAPES`` escapes, to bound the time of the search to about 0.1 s.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from fairserve.engine.wire.base import MalformedAnswerError

MAX_REPAIRED_BYTES = 4 * 1024 * 1024
MAX_REPAIRED_ESCAPES = 100_000
MAX_DEPTH = 200
"""Maximum nesting; orjson reads 1,024 levels and writes 254."""
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_PAIR}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{{2}})|.)", re.DOTALL)


def parse_object(raw: bytes, name: str) -> dict[str, Any]:
    """Return the object; O(bytes). Raises MalformedAnswerError, which calls it ``name``."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _repaired(raw, name)
    if not isinstance(value, dict):
        raise MalformedAnswerError(f"{name} is not a JSON object")
    if is_too_deep(value, raw):
        raise MalformedAnswerError(f"{name} has more than {MAX_DEPTH} levels")
    return value


def _repaired(raw: bytes, name: str) -> Any:
    try:
        if len(raw) > MAX_REPAIRED_BYTES or raw.count(b"\\") > MAX_REPAIRED_ESCAPES:
            raise ValueError("too long to be repaired")
        return orjson.loads(_ESCAPE.sub(_without_half, raw.decode("utf-8-sig", "replace")))
    except ValueError as failure:
        raise MalformedAnswerError(f"{name} is not JSON") from failure


def _without_half(escape: re.Match[str]) -> str:
    return "\ufffd" if escape["half"] else escape[0]


def is_too_deep(value: dict[str, Any], raw: bytes | None = None) -> bool:
    """Return whether an object has over ``MAX_DEPTH`` levels.

    O(values), or a search of its text ``raw`` if that is given and has few brackets.
    """
    if raw is not None and raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH:
        return False
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        # Of a vector, only the set of types is built: it has no containers.
        level = [
            each
            for values in inner
            if not {dict, list}.isdisjoint(map(type, values))
            for each in values
            if isinstance(each, dict | list)
        ]
        if not level:
            return False
    return True
