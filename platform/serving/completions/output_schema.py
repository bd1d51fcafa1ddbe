"""Bounds of the JSON schemas that calls bring: a worker compiles each before its first token.

A schema that takes long to compile holds up the calls of everybody at its worker, and costs no tokens.
So size, depth, patterns and counted repetitions are bounded. Some compilers fetch what a schema refers
to: a reference must lead into the schema itself, wherever it is. The ``$id`` of a whole schema may be an
address, as many are: it is left out (:func:`without_id`), because such references do not need it.

Weakness: the bounds are rules of thumb; within them schemas differ in what they cost.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator

from fairserve.engine.wire.request_fields import shown

MAX_SCHEMA_BYTES = 64 * 1024
MAX_DEPTH = 32
MAX_PATTERN_CHARS = 500
MAX_PATTERN_COUNT = 1_000
"""Largest product of the counts ``{m,n}`` in one pattern, which may be nested."""
MAX_COUNT = 32_768
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_NAMES = frozenset({"$id", "$schema", "$vocabulary"})
"""Keywords whose values are addresses as a rule; those of schemas themselves are only names."""
_DIALECT = re.compile(r"https?://json-schema\.org/[\w./-]{1,80}#?")
_REPETITION = re.compile(r"\{(\d{0,9})(?:,(\d{0,9}))?\}")


def schema_problem(schema: Any) -> str:
    """Return the problem of a JSON schema, as the end of a sentence; empty if there is none."""
    try:
        size = len(orjson.dumps(schema))
    except (TypeError, ValueError):  # deeper than any serialiser goes
        return f"is nested too deeply; allowed: {MAX_DEPTH} levels"
    if size > MAX_SCHEMA_BYTES:
        return f"has {size} bytes; allowed: {MAX_SCHEMA_BYTES}"
    left = [(schema, 1)]
    while left:
        value, depth = left.pop()
        if depth > MAX_DEPTH:
            return f"is nested too deeply; allowed: {MAX_DEPTH} levels"
        if isinstance(value, list):
            left += [(each, depth + 1) for each in value]
        elif isinstance(value, dict):
            for name, each in value.items():
                if depth == 1 and name == "$id":
                    continue
                if problem := _keyword_problem(name, each):
                    return problem
                left.append((each, depth + 1))
    return ""


def without_id(schema: Any) -> Any:
    """Return a schema without its own ``$id``. Any value may be passed; nothing is changed in place."""
    if isinstance(schema, dict) and "$id" in schema:
        return {name: value for name, value in schema.items() if name != "$id"}
    return schema


def _keyword_problem(name: str, value: Any) -> str:
    if name in _COUNTS and isinstance(value, int | float) and value > MAX_COUNT:
        return f"has {name} {value}; allowed: up to {MAX_COUNT}"
    if name in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
        return f"has {name} {shown(value)}; allowed: references into the schema, which begin with #"
    if (
        name in _NAMES
        and _has_address(value)
        and not (name == "$schema" and _DIALECT.fullmatch(value))
    ):
        return f"has {name} {shown(value)}; leave it out, because workers fetch nothing"
    if name == "pattern" and isinstance(value, str):
        return _pattern_problem(value)
    if name == "patternProperties" and isinstance(value, dict):
        return next(filter(None, map(_pattern_problem, value)), "")
    return ""


def _has_address(value: Any) -> bool:
    """Return whether the value of a keyword is, or has, an address."""
    texts = value if isinstance(value, dict) else [value]
    return any(isinstance(text, str) and ("//" in text or text[:5] == "file:") for text in texts)


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    if problem := schema_problem(schema):
        raise ValueError(problem)
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_checked)]
"""A JSON schema within the bounds."""


def _pattern_problem(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"has a pattern of {len(pattern)} characters; allowed: {MAX_PATTERN_CHARS}"
    product = 1
    for counts in _REPETITION.findall(pattern):
        product *= max(1, *(int(count) for count in counts if count))
    if product > MAX_PATTERN_COUNT:
        return (
            f"has a pattern whose counts multiply to {product}; allowed: up to {MAX_PATTERN_COUNT}"
        )
    return ""
