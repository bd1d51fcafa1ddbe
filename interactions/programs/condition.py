"""Condition on a node's run: one comparison of an earlier node's output, from a small, safe set.

``{"node": id, "op": ..., "value": ..., "path": ...}``. The output, or its field at ``path``, is compared
as text without surrounding white space and with its case; JSON other than a string is compact JSON.
``equals`` and ``not_equals`` with a number, ``greater`` and ``less`` compare numbers, and a text that is
no number is neither equal, greater nor less. A field that is absent is null, as is a skipped node's
output, and null is the empty text. ``empty`` holds for null, the empty text, list and object.

Weakness: without a path an output is text, so that the answer ``[]`` is not empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SkipValidation, model_validator

from fairserve.interactions.programs.output import (
    JsonMemo,
    Output,
    OutputFieldError,
    Path,
    PathError,
    parse_path,
    read,
    text_of,
)
from fairserve.interactions.programs.program_fields import (
    Declared,
    NodeReference,
    invalid,
    kind,
    printable,
    shown,
)

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
MAX_NUMBER_CHARS = 64

Value = str | float | bool | None


def _equals(text: str, value: Value) -> bool:
    if isinstance(value, bool):
        return text == text_of(value)
    if isinstance(value, str):
        return text == value.strip()
    return number(text) == value


def _greater(text: str, value: Value) -> bool:
    found = number(text)
    return found is not None and isinstance(value, int | float) and found > value


def _less(text: str, value: Value) -> bool:
    found = number(text)
    return found is not None and isinstance(value, int | float) and found < value


def _contains(text: str, value: Value) -> bool:
    return isinstance(value, str) and value in text


def _starts_with(text: str, value: Value) -> bool:
    return isinstance(value, str) and text.startswith(value)


OPS: Mapping[str, tuple[str, Callable[[str, Value], bool]]] = MappingProxyType(
    {
        "equals": ("any", _equals),
        "not_equals": ("any", lambda text, value: not _equals(text, value)),
        "contains": ("text", _contains),
        "not_contains": ("text", lambda text, value: not _contains(text, value)),
        "starts_with": ("text", _starts_with),
        "empty": ("none", lambda text, _value: text in ("", "[]", "{}")),
        "not_empty": ("none", lambda text, _value: text not in ("", "[]", "{}")),
        "greater": ("number", _greater),
        "less": ("number", _less),
    }
)
"""Operations by name: the kind of their value, and the comparison of a text with it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of one node's output."""

    node: str
    op: str
    value: Value = None
    path: Path = ()

    def holds(self, output: Output, memo: JsonMemo) -> bool:
        """Return whether the condition holds. ``output`` is that of ``node``."""
        kind_of_value, compare = OPS[self.op]
        try:
            value = read(output, self.path, memo)
            text = "" if value is None else text_of(value).strip()
        except OutputFieldError:
            value, text = None, ""
        if kind_of_value == "none" and isinstance(value, str):
            # The text "[]" is a text, not an empty list.
            return (text == "") == (self.op == "empty")
        return compare(text, self.value)


def _check_op(value: object) -> object:
    if not isinstance(value, str) or value not in OPS:
        raise invalid(f"is {shown(value)}; allowed: {', '.join(OPS)}")
    return value


def _check_path(value: str) -> str:
    try:
        parse_path(value)
    except PathError as error:
        raise invalid(str(error)) from None
    return value


PathText = Annotated[str, printable(10_000), AfterValidator(_check_path)]
"""A path such as ``plan.steps.0``."""


class WhenIn(Declared):
    """The node runs only if this holds."""

    node: NodeReference = Field(description="The node whose output is tested.")
    op: Annotated[str, BeforeValidator(_check_op)] = Field(json_schema_extra={"enum": list(OPS)})
    value: SkipValidation[str | float | bool | None] = None
    path: PathText | None = Field(None, description="Path in that output.")

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        self.value = _value(self.op, self.value, given="value" in self.model_fields_set)
        return self

    def condition(self) -> Condition:
        """Return the condition; that its node is an ancestor is the program's to check."""
        return Condition(self.node, self.op, self.value, path_of(self.path))


def path_of(text: str | None) -> Path:
    """Return a checked path; empty without one."""
    return () if text is None else parse_path(text)


def number(text: str) -> float | None:
    """Return the finite number that a text contains, or None."""
    if len(text) > MAX_NUMBER_CHARS or not NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _value(op: str, value: object, *, given: bool) -> Value:
    """Return the value of a comparison, as its operation takes it."""
    kind_of_value, _ = OPS[op]
    if kind_of_value == "none":
        if given:
            raise invalid(f"{op} takes no value", at="value")
        return None
    if isinstance(value, bool) and kind_of_value == "any":
        return value
    if isinstance(value, str) and kind_of_value in ("any", "text"):
        if not value and kind_of_value == "text":
            raise invalid(f"{op} needs a string that is not empty", at="value")
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and kind_of_value != "text":
        if not abs(value) <= 1e300:
            raise invalid("is out of range; allowed: -1e300 to 1e300", at="value")
        return float(value)
    allowed = {"any": "a string, a number, true or false", "text": "a string", "number": "a number"}
    raise invalid(f"must be {allowed[kind_of_value]}, not {kind(value)}", at="value")
