"""Make a value that is valid under a JSON schema as tools have it, out of the words of a text.

An object has its required properties; a string is the words, a number the next one of the text if it is
in range; of several schemas the first that has a value is taken. Equal inputs give equal values.

Weakness: a schema with another keyword than those below has no example: a grammar then decides the
value, which is valid and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Schema = Mapping[str, Any]

MAX_VALUES = 500
"""Maximum values in one example, over all attempts."""
MAX_DEPTH = 32
MAX_CHARS = 2_000
"""Maximum characters of a string."""
_FORMATS = {
    "date": "2026-01-15",
    "time": "09:30:00Z",
    "date-time": "2026-01-15T09:30:00Z",
    "email": "ann@example.com",
    "uri": "https://example.com/",
    "uuid": "3f2b8c1e-7d4a-4e9b-9c55-0a1b2c3d4e5f",
}
_NOTES = frozenset(["$schema", "$id", "$anchor", "$comment", "$defs", "definitions"]).union(
    ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"],
    ["nullable", "strict"],
)
_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset(["properties", "required", "additionalProperties"]),
    "array": frozenset(["items", "minItems", "maxItems", "uniqueItems"]),
    "string": frozenset(["minLength", "maxLength", "format"]),
    "number": _BOUNDS,
    "integer": _BOUNDS,
    "boolean": frozenset(),
    "null": frozenset(),
}
_NUMBERS = re.compile(r"(?<![\w.])-?\d{1,9}(?:\.\d{1,6})?(?!\w)")
_IS_OF: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


class NoExampleError(ValueError):
    """No value of the schema can be made; the message has the reason."""


class SchemaExample:
    """Values of the schemas within one root."""

    def __init__(self, root: Any, words: str, text: str = "") -> None:
        """``words`` is the value of a string, and ``text`` has the numbers."""
        self._root = root
        self._words = words or "text"
        self._numbers = map(float, _NUMBERS.findall(text))
        self._left = MAX_VALUES

    def value(self) -> Any:
        """Return a value of the root. Raises NoExampleError."""
        try:
            return self._of(self._root, 0)
        except NoExampleError:
            raise
        except (TypeError, AttributeError, ValueError, KeyError) as error:
            raise NoExampleError("it is not a valid schema") from error

    def _of(self, schema: Any, depth: int) -> Any:
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise NoExampleError("it is too deep or too large")
        if isinstance(schema, bool):
            if schema:
                return self._words
            raise NoExampleError("it allows no value")
        keywords = schema.keys() - _NOTES
        if keywords == {"$ref"}:
            return self._of(self._resolved(schema["$ref"]), depth + 1)
        if keywords == {"anyOf"} or (keywords == {"allOf"} and len(schema["allOf"]) == 1):
            (parts,) = (schema[name] for name in keywords)
            parts = sorted(parts, key=lambda each: each == {"type": "null"})
            return _first(lambda part: self._of(part, depth + 1), parts)
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if "const" in keywords or "enum" in keywords:
            if keywords - {"type"} not in ({"const"}, {"enum"}):
                raise NoExampleError("its listed values have other keywords, too")
            for each in schema.get("enum", [schema.get("const")]):
                if kinds is None or any(_IS_OF[kind](each) for kind in kinds):
                    return each
            raise NoExampleError("none of its values fits it")
        if kinds is None:
            known = (kind for kind, words in _KEYWORDS.items() if keywords and keywords <= words)
            kinds = [next(known, "string")]
        for kind in kinds:
            if unknown := keywords - _KEYWORDS[kind] - {"type"}:
                raise NoExampleError(f"the keyword {min(unknown)!r} is not supported")
        kinds = sorted(kinds, key="null".__eq__)
        return _first(lambda kind: self._of_kind(kind, schema, depth + 1), kinds)

    def _resolved(self, reference: str) -> Any:
        found = self._root
        if not reference.startswith("#"):
            raise NoExampleError(f"the reference {reference[:60]!r} leaves the schema")
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise NoExampleError(f"the reference {reference[:60]!r} leads nowhere")
            found = found[name]
        return found

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        names = [name for name in properties if name in required]
        names += [name for name in required if name not in properties]
        others = schema.get("additionalProperties", True)
        return {name: self._of(properties.get(name, others), depth) for name in names}

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", MAX_VALUES)
        if not least <= min(most, MAX_VALUES):
            raise NoExampleError(f"minItems is over maxItems or {MAX_VALUES}")
        if least > 1 and schema.get("uniqueItems", False):
            raise NoExampleError("its items must be different")
        items = schema.get("items", True)
        try:
            return [self._of(items, depth) for _ in range(min(max(least, 1), most))]
        except NoExampleError:
            if least:
                raise
            return []

    def _of_kind(self, kind: str, schema: Schema, depth: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "number" | "integer":
                return self._number(schema, whole=kind == "integer")
        return True if kind == "boolean" else None

    def _string(self, schema: Schema) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", MAX_CHARS)
        if not least <= min(most, MAX_CHARS):
            raise NoExampleError(f"minLength is over maxLength or {MAX_CHARS}")
        text = _FORMATS.get(schema.get("format", ""), self._words)
        if not least <= len(text) <= most and "format" in schema:
            raise NoExampleError("no text of its format has its length")
        while len(text) < least:
            text += f" {self._words}"
        return text[:most]

    def _number(self, schema: Schema, *, whole: bool) -> int | float:
        """Return the next number of the text, or 1, moved into the bounds."""
        wanted = next(self._numbers, 1.0)
        low, high = schema.get("minimum"), schema.get("maximum")
        over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        ends = [end for end in (low, high, over, under) if end is not None]
        near = [end + step for end in ends for step in (0, 1, -1)]
        candidates = [wanted, *near, sum(ends) / len(ends) if ends else 1]
        for value in sorted(candidates, key=lambda each: abs(each - wanted)):
            found = int(value) if whole or float(value).is_integer() else float(value)
            if not (
                (low is not None and found < low)
                or (high is not None and found > high)
                or (over is not None and found <= over)
                or (under is not None and found >= under)
            ):
                return found
        raise NoExampleError("no number is known that fits it")


def _first(make: Callable[[Any], Any], choices: Iterable[Any]) -> Any:
    """Return the value of the first choice that has one. Raises the last NoExampleError."""
    problem = NoExampleError("it has no type")
    for each in choices:
        try:
            return make(each)
        except NoExampleError as error:
            problem = error
    raise problem
