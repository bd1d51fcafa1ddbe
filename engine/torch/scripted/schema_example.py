"""Make a value that is valid under a JSON schema, out of the words of a text.

An object has its required properties; a string is the words, a number the next one of the text if it is
in range; of several schemas the first that has a value is taken. Equal inputs give equal values.

Weakness: keywords beyond those below (``pattern``, ``not``, ``if``), and schemas of ``oneOf`` that may
overlap, are errors. They are never ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
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
    "duration": "PT1H",
    "email": "ann@example.com",
    "hostname": "example.com",
    "uri": "https://example.com/",
    "uuid": "3f2b8c1e-7d4a-4e9b-9c55-0a1b2c3d4e5f",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
_NOTES = frozenset(["$schema", "$id", "$anchor", "$comment", "$defs", "definitions"]).union(
    ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"],
    ["discriminator", "nullable", "strict"],
)
_KEYWORDS = {
    "object": ["properties", "required", "additionalProperties", "minProperties", "maxProperties"],
    "array": ["items", "prefixItems", "minItems", "maxItems", "uniqueItems"],
    "string": ["minLength", "maxLength", "format"],
    "number": ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
}
_KNOWN = _NOTES.union(
    ["type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"], *_KEYWORDS.values()
)
_PARTS = frozenset([*_KEYWORDS["object"], *_KEYWORDS["array"]])
_LOWER_BOUNDS = frozenset(["minimum", "exclusiveMinimum", "minItems", "minLength", "minProperties"])
_UPPER_BOUNDS = frozenset(["maximum", "exclusiveMaximum", "maxItems", "maxLength", "maxProperties"])
_NUMBERS = re.compile(r"(?<![\w.])-?\d{1,9}(?:\.\d{1,6})?(?!\w)")


class NoExampleError(ValueError):
    """No value of the schema can be made; the message has the reason."""


class SchemaExample:
    """Values of the schemas within one root."""

    def __init__(self, root: Any, words: str, text: str = "") -> None:
        """``words`` is the value of a string, and ``text`` has the numbers."""
        self._root = root
        self._words = words or "text"
        self._numbers = map(Fraction, _NUMBERS.findall(text))
        self._left = MAX_VALUES

    def value(self) -> Any:
        """Return a value of the root. Raises NoExampleError."""
        try:
            return self._of(self._root, 0, 0)
        except NoExampleError:
            raise
        except (TypeError, AttributeError, ValueError, RecursionError) as error:
            raise NoExampleError("it is not a valid schema") from error

    def _of(self, schema: Any, depth: int, turn: int) -> Any:
        """Return a value of a schema; another ``turn`` gives another one, if there are several."""
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise NoExampleError("it is too deep or too large")
        flat = self._flat(schema)
        if unknown := flat.keys() - _KNOWN:
            raise NoExampleError(f"the keyword {min(unknown)!r} is not supported")
        for name in ("allOf", "oneOf", "anyOf"):
            if name in flat:
                rest = {key: value for key, value in flat.items() if key != name}
                return self._of_parts(name, flat[name], rest, depth + 1, turn)
        if "const" in flat or "enum" in flat:
            listed = [flat["const"]] if "const" in flat else flat["enum"]
            if flat.keys() & _PARTS and any(isinstance(each, Mapping | list) for each in listed):
                raise NoExampleError("an object or list of its values has a schema, too")
            return _turned([each for each in listed if _is_valid(each, flat)], turn)
        return self._of_type(flat, depth, turn)

    def _flat(self, schema: Any) -> Schema:
        """Return a schema as an object without ``$ref``."""
        for _ in range(MAX_DEPTH):
            if schema is True:
                return {}
            if schema is False:
                raise NoExampleError("it allows no value")
            if "$ref" not in schema:
                return dict(schema)
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            found = self._resolved(schema["$ref"])
            schema = _merged(found, rest) if rest.keys() - _NOTES else found
        raise NoExampleError("its references have no end")

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

    def _of_parts(
        self, name: str, parts: Sequence[Any], rest: Schema, depth: int, turn: int
    ) -> Any:
        """Return a value of all parts, or of the first one that has a value."""
        if name == "allOf":
            for part in parts:
                rest = _merged(rest, self._flat(part))
            return self._of(rest, depth, turn)
        flat = [self._flat(part) for part in parts]
        if name == "oneOf":
            rest = _merged(rest, _distinction(flat))
        problem = NoExampleError(f"{name} is empty")
        for part in sorted(flat, key=lambda each: each.get("type") == "null"):
            try:
                return self._of(_merged(rest, part), depth, turn)
            except NoExampleError as error:
                problem = error
        raise problem

    def _of_type(self, schema: Schema, depth: int, turn: int) -> Any:
        kinds = schema.get("type")
        if kinds is None:
            kinds = next(
                (kind for kind, words in _KEYWORDS.items() if schema.keys() & words), "string"
            )
        problem = NoExampleError("it has no type")
        for kind in sorted([kinds] if isinstance(kinds, str) else kinds, key="null".__eq__):
            try:
                value = self._of_kind(kind, schema, depth + 1, turn)
            except NoExampleError as error:
                problem = error
                continue
            if _is_valid(value, schema):
                return value
            problem = NoExampleError(f"no {kind} is known that fits it")
        raise problem

    def _of_kind(self, kind: str, schema: Schema, depth: int, turn: int) -> Any:
        match kind:
            case "object":
                return self._object(schema, depth, turn)
            case "array":
                return self._array(schema, depth, turn)
            case "string":
                return self._string(schema, turn)
            case "number" | "integer":
                return self._number(schema, kind == "integer", turn)
            case "boolean":
                return _turned([True, False], turn)
            case "null":
                return None
        raise NoExampleError(f"the type {kind!r:.60} is unknown")

    def _object(self, schema: Schema, depth: int, turn: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        others = [name for name in schema.get("required", ()) if name not in properties]
        missing = schema.get("minProperties", 0) - len(required)
        value = {}
        for name, part in properties.items():
            if name in required:
                value[name] = self._of(part, depth, turn)
            elif missing > 0:
                value[name] = self._of(part, depth, turn)
                missing -= 1
        for name in others:
            value[name] = self._of(schema.get("additionalProperties", True), depth, turn)
        return value

    def _array(self, schema: Schema, depth: int, turn: int) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", MAX_VALUES)
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        count = min(max(least, len(first), 1), most)
        if least > MAX_VALUES:
            raise NoExampleError(f"minItems is over {MAX_VALUES}")
        values: list[Any] = []
        unique = schema.get("uniqueItems", False)
        try:
            while len(values) < count:
                at = len(values)
                part = first[at] if at < len(first) else rest
                value = self._of(part, depth, turn + at)
                if unique and any(_same(value, each) for each in values):
                    raise NoExampleError("its items have too few different values")
                values.append(value)
        except NoExampleError:
            if len(values) < least:
                raise
        return values

    def _string(self, schema: Schema, turn: int) -> str:
        least: int = schema.get("minLength", 0)
        most: int = schema.get("maxLength", MAX_CHARS)
        if least > MAX_CHARS:
            raise NoExampleError(f"minLength is over {MAX_CHARS}")
        known = _FORMATS.get(schema.get("format", ""))
        if known is not None and not turn:
            return known
        text = f"{turn + 1} {self._words}" if turn else self._words
        text += f" {text}" * -(-(least - len(text)) // (len(text) + 1))
        return text[:most]

    def _number(self, schema: Schema, whole: bool, turn: int) -> int | float:
        low, high = _bound(schema, "minimum"), _bound(schema, "maximum")
        over, under = _bound(schema, "exclusiveMinimum"), _bound(schema, "exclusiveMaximum")
        step = _bound(schema, "multipleOf")
        if whole:
            # The whole numbers among the multiples of p/q are the multiples of p.
            step = Fraction(step.numerator if step is not None else 1)
        if step is not None:
            low = _highest(low, None if over is None else (over // step + 1) * step)
            high = _lowest(high, None if under is None else (math.ceil(under / step) - 1) * step)
        else:
            between = over + (under - over) / 2 if over is not None and under is not None else None
            low = _highest(low, None if over is None else between or over + 1)
            high = _lowest(high, None if under is None else between or under - 1)
        value = _lowest(_highest(next(self._numbers, Fraction(1)), low), high)
        assert value is not None
        if step is not None:
            value = value // step * step
            value += step if low is not None and value < low else 0
        value += turn * (step or 1)
        if high is not None and value > high and turn:
            value -= (turn * 2) * (step or 1)
        return int(value) if value.denominator == 1 else float(value)


def _merged(one: Schema, other: Schema) -> Schema:
    """Return a schema of the values that both allow. Raises NoExampleError if none is known."""
    if not one or not other:
        return one or other
    merged = {**other, **one}
    for name in one.keys() & other.keys() - _NOTES:
        merged[name] = _merged_keyword(name, one[name], other[name])
    if "properties" in one or "properties" in other:
        merged["properties"] = _merged_properties(one, other)
    return merged


def _merged_keyword(name: str, one: Any, other: Any) -> Any:
    if one == other or name == "properties":
        return one
    if name in _LOWER_BOUNDS:
        return max(one, other)
    if name in _UPPER_BOUNDS:
        return min(one, other)
    match name:
        case "required":
            return list(dict.fromkeys([*one, *other]))
        case "allOf":
            return [*one, *other]
        case "uniqueItems":
            return one or other
        case "enum":
            return [each for each in one if any(_same(each, found) for found in other)]
        case "items" | "additionalProperties":
            return _both(one, other)
        case "type":
            return _common_types(one, other)
    raise NoExampleError(f"two values of {name!r} apply at once")


def _both(one: Any, other: Any) -> Any:
    """Return the schema of what two schemas allow, which may be true or false."""
    if one is False or other is False:
        return False
    if one is True or other is True:
        return other if one is True else one
    return {"allOf": [one, other]}


def _merged_properties(one: Schema, other: Schema) -> dict[str, Any]:
    """Return the properties of both, each also under the other's ``additionalProperties``."""
    merged = {}
    for name in {**one.get("properties", {}), **other.get("properties", {})}:
        parts = [
            each.get("properties", {}).get(name, each.get("additionalProperties", True))
            for each in (one, other)
        ]
        merged[name] = parts[0] if parts[0] == parts[1] else _both(*parts)
    return merged


def _common_types(one: Any, other: Any) -> list[str]:
    left, right = ([each] if isinstance(each, str) else list(each) for each in (one, other))
    for kinds in (left, right):
        if "number" in kinds:
            kinds.append("integer")
    return [kind for kind in dict.fromkeys(left) if kind in right]


def _distinction(parts: list[Schema]) -> Schema:
    """Return what makes a value of one part no value of another. Raises NoExampleError."""
    kinds = [part.get("type") for part in parts]
    values = {value for part in parts if isinstance(value := _only_value(part), str)}
    if len(parts) in (1, len(values)) or (
        all(isinstance(kind, str) for kind in kinds)
        and len(set(kinds)) == len(kinds)
        and not {"integer", "number"} <= set(kinds)
    ):
        return {}
    for name in parts[0].get("properties", {}):
        tags = [_only_value(part.get("properties", {}).get(name)) for part in parts]
        texts = {tag for tag in tags if isinstance(tag, str)}
        if len(texts) == len(parts) and set(kinds) == {"object"}:
            return {"required": [name]}
    raise NoExampleError("the schemas of 'oneOf' may overlap")


def _only_value(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return None
    listed = schema.get("enum", ())
    return schema.get("const", listed[0] if len(listed) == 1 else None)


def _turned(values: Sequence[Any], turn: int) -> Any:
    if not values:
        raise NoExampleError("none of its values fits it")
    return values[turn % len(values)]


def _is_valid(value: Any, schema: Schema) -> bool:
    """Return whether a value has an allowed type, is listed, and within the bounds of its type."""
    kinds = schema.get("type")
    if kinds is not None and not any(
        _is_of(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)
    ):
        return False
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return False
    if isinstance(value, str):
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
        return bool(least <= len(value) <= most)
    if isinstance(value, Mapping):
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(value))
        return bool(least <= len(value) <= most)
    if isinstance(value, list):
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
    if isinstance(value, bool) or value is None:
        return True
    step = _bound(schema, "multipleOf")
    return bool(
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and schema.get("exclusiveMinimum", -math.inf) < value
        and value < schema.get("exclusiveMaximum", math.inf)
        and (step is None or Fraction(str(value)) % step == 0)
    )


def _is_of(value: Any, kind: str) -> bool:
    match kind:
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer" | "number":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return not isinstance(value, bool) and (
                whole or (kind == "number" and isinstance(value, float))
            )
    return False


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _bound(schema: Schema, name: str) -> Fraction | None:
    return Fraction(str(schema[name])) if name in schema else None


def _highest(*bounds: Fraction | None) -> Fraction | None:
    return max((each for each in bounds if each is not None), default=None)


def _lowest(*bounds: Fraction | None) -> Fraction | None:
    return min((each for each in bounds if each is not None), default=None)
