"""Find the problem of a body that its client needs to know, among all that pydantic reports.

For a value that may have several forms pydantic reports the problems of each form, in the order of the
forms: of a list that is too long, that it is no text. Here the form is the one that the value has, or
comes closest to, and the location is that of the body, without the names of forms.

Pydantic looks at all of a body, and each problem costs 50 microseconds and 2 KB until it is found here.
So the problems are bounded: lists in the bodies of requests have ``fail_fast``, their objects
:func:`with_one_unknown`, and those with names of the client's :func:`at_most`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import BaseModel, BeforeValidator
from pydantic_core import PydanticKnownError

Path = tuple[str | int, ...]
_EXPECTED = "Input should be "


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a body."""

    kind: str
    """Pydantic's type of the error."""
    text: str
    path: Path
    """Location in the body."""
    value: Any
    context: Mapping[str, Any]
    """Pydantic's values in the text."""
    forms: tuple[tuple[int, str], ...] = ()
    """Names of the forms that were tried on the way, each with the length of the path there."""

    @property
    def field(self) -> str:
        """Return the location as a client writes it: ``messages[0].role``."""
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return "".join(parts).lstrip(".")


def with_one_unknown(body: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a body with the first of its unknown fields only, if it has many."""
    if len(value) <= len(body.model_fields):
        return value
    known = _names(body)
    first = next((name for name in value if name not in known), None)
    return {name: each for name, each in value.items() if name in known or name == first}


def at_most(entries: int) -> BeforeValidator:
    """Return the check of an object's length that comes before the checks of its entries."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            raise PydanticKnownError(
                "too_long",
                {
                    "field_type": "Dictionary",
                    "max_length": entries,
                    "actual_length": len(value),
                },
            )
        return value

    return BeforeValidator(check)


@cache
def _names(body: type[BaseModel]) -> frozenset[str]:
    """Return the names of a body's fields as clients write them."""
    return frozenset(field.alias or name for name, field in body.model_fields.items())


def true_problem(
    errors: Sequence[Mapping[str, Any]], body: Any, tags: Collection[str] = frozenset()
) -> Problem:
    """Return the first problem of a body, in the form that its value has.

    ``errors`` are pydantic's, with locations in ``body``, which is None for one that is not known:
    then all of a location is a path. ``tags`` are the values that distinguish the
    members of a list, such as the types of blocks.
    """
    found = [_located(error, body, tags) for error in errors]
    depth = 0
    while depth < len(found[0].forms):
        length, _ = found[0].forms[depth]
        prefix = found[0].path[:length]
        forms: dict[str, list[Problem]] = {}
        for problem in found:
            if problem.path[:length] == prefix and problem.forms[depth : depth + 1]:
                at, name = problem.forms[depth]
                if at == length:
                    forms.setdefault(name, []).append(problem)
        found = max(forms.values(), key=lambda problems: _closeness(problems, length))
        if _is_other_type(found[0], length):
            return _none_of(found[0], [problems[0] for problems in forms.values()])
        depth += 1
    return found[0]


def _located(error: Mapping[str, Any], body: Any, tags: Collection[str]) -> Problem:
    path: list[str | int] = []
    forms: list[tuple[int, str]] = []
    value, location = body, error["loc"]
    for number, part in enumerate(location):
        last = number == len(location) - 1
        if body is None:
            path.append(part)
        elif isinstance(part, int):
            path.append(part)
            inside = isinstance(value, list | tuple) and part < len(value)
            value = value[part] if inside else None
        elif (
            part in tags and path and isinstance(path[-1], int) and location[number - 1] == path[-1]
        ):
            continue
        elif isinstance(value, dict) and part in value:
            path.append(part)
            value = value[part]
        elif last and error["type"] == "missing":
            path.append(part)
        elif part != "[key]":
            forms.append((len(path), part))
    context = error.get("ctx", {})
    return Problem(
        error["type"], text_of(error), tuple(path), error["input"], context, tuple(forms)
    )


def text_of(error: Mapping[str, Any]) -> str:
    """Return what one of pydantic's errors says, without the prefix of our own validators' errors."""
    return str(error["msg"]).removeprefix("Value error, ")


def _closeness(problems: Sequence[Problem], length: int) -> tuple[bool, bool, list[int]]:
    """Return how well a value has a form: its type fits, then its parts' types, then how many."""
    first = problems[0]
    indexes = [part for part in first.path[length:] if isinstance(part, int)]
    types_fit = not any(problem.kind.endswith("_type") for problem in problems)
    return (not _is_other_type(first, length), types_fit, indexes)


def _is_other_type(problem: Problem, length: int) -> bool:
    """Return whether the problem is that the value at a depth has not the type of the form."""
    if len(problem.path) > length:
        return False
    if problem.kind == "literal_error":
        return not isinstance(problem.value, str | int | float)
    return problem.kind.endswith("_type")


def _none_of(first: Problem, others: Sequence[Problem]) -> Problem:
    """Return the problem of a value that has none of the forms."""
    wanted = dict.fromkeys(problem.text.removeprefix(_EXPECTED) for problem in others)
    return replace(first, text=_EXPECTED + ", or ".join(wanted))
