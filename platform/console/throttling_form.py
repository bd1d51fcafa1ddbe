"""Form fields of the throttling parameters: allowed input, parsing, and the values to store.

The default of a parameter is its value if it is omitted: the server's setting, else the system's
default. A version stores values that differ from the default, and values that an operator stored before
and did not change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from fairserve.interactions.call import LEVELS
from fairserve.platform.db.base import ID_CHARS
from fairserve.platform.tenancy.system.parameters import (
    describe,
    public_parameters,
    system_config,
)
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.platform.tuning.service import Current
from fairserve.scheduling.system import SystemConfig

FIELD = "p."
"""Prefix of field names, followed by the parameter's name."""
PARTS = ("own", "throttle", "feeder", "router", "local")
DEFAULT = "default"

_TEXTS: Mapping[str, Sequence[str]] = {"levels": LEVELS}
"""Choices of parameters whose type does not define them."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_MAX_CHARS = 100


class ParameterKind(NamedTuple):
    """Kind of input of a field."""

    type: Literal["choice", "whole", "number", "text"]
    choices: tuple[str, ...] = ()
    """Options of a selection, including ``none``; empty for free input."""
    nullable: bool = False

    @property
    def allowed(self) -> str:
        """Return a description of the allowed input."""
        if self.choices:
            return ", ".join(self.choices)
        what = {"whole": "a whole number", "number": "a number such as 0.5, or inf"}
        return what.get(self.type, f"{_MAX_CHARS} characters") + (", or none" * self.nullable)


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter on the page."""

    name: str
    unit: str
    meaning: str
    kind: ParameterKind
    default: Any
    own_default: Any
    """Default of the system, without the server's settings."""
    value: Any
    """Value in force, or the default of another selected system."""
    text: str
    """Text of the input."""
    problem: str | None = None

    @property
    def differs(self) -> bool:
        """Return whether the value differs from the default."""
        return bool(self.value != self.default)

    @property
    def texts(self) -> dict[str, str]:
        """Return the values as texts."""
        names = ("value", "default", "own_default")
        return {name: text_of(getattr(self, name)) for name in names}

    @property
    def part(self) -> str:
        """Return the part of the system to which the parameter belongs."""
        part, dot, _ = self.name.partition(".")
        return part if dot else "own"


@dataclass(frozen=True, slots=True)
class ParameterForm:
    """All parameters of a system, with the entered texts."""

    system: str
    config: SystemConfig
    fields: Sequence[Field]
    parameters: Mapping[str, Any]
    """Values to store; empty if a field has an error."""

    @property
    def problems(self) -> list[Field]:
        """Return the fields with errors."""
        return [field for field in self.fields if field.problem]


class ParameterChange(NamedTuple):
    """A changed setting with its old and new text."""

    name: str
    old: str
    new: str


def kind_of(name: str, hint: Any) -> ParameterKind:
    """Return the kind of a parameter's field."""
    types = [each for each in get_args(hint) if each is not NoneType]
    nullable = NoneType in get_args(hint)
    if nullable and len(types) == 1:
        hint = types[0]
    none = ("none",) * nullable
    if get_origin(hint) is Literal:
        return ParameterKind("choice", (*get_args(hint), *none), nullable)
    if name in _TEXTS:
        return ParameterKind("choice", (*_TEXTS[name], *none), nullable)
    if hint is int:
        return ParameterKind("whole", nullable=nullable)
    return ParameterKind("number" if hint is float else "text", nullable=nullable)


def parse(kind: ParameterKind, text: str) -> Any:
    """Parse a text. Raises ValueError, which names the allowed input."""
    text = text.strip()
    if kind.nullable and text == "none":
        return None
    if kind.choices and text in kind.choices:
        return text
    if kind.type == "whole" and _WHOLE.fullmatch(text):
        return int(text)
    if kind.type == "number":
        if text == "inf":
            return math.inf
        if _NUMBER.fullmatch(text) and len(text) <= _MAX_CHARS and math.isfinite(float(text)):
            return float(text)
    if kind.type == "text" and len(text) <= _MAX_CHARS:
        return text
    given = f"“{text[:30]}”" if text else "nothing"
    raise ValueError(f"{given} is not allowed; must be {kind.allowed}")


def text_of(value: Any) -> str:
    """Return the text of a value, the inverse of :func:`parse`."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value)


def parameter_form(
    settings: TuningSettings, current: Current, system: str, form: Mapping[str, str] | None = None
) -> ParameterForm:
    """Return the parameters of a system with the values in force or those of a form.

    A missing field of the form is the default. Raises ValueError for an unknown system and for a
    parameter that the system does not have.
    """
    if len(system) > ID_CHARS:
        raise ValueError(f"the system's name has more than {ID_CHARS} characters")
    stored = current.parameters if system == current.system else {}
    base = public_parameters(system_config(settings, system, {}))
    kinds = {name: kind_of(name, hint) for name, (_, hint) in base.items()}
    holds = describe(settings, system, stored)
    texts = {p.name: text_of(p.value) for p in holds}
    values: dict[str, Any] = {p.name: p.value for p in holds}
    problems: dict[str, str] = {}
    if form is not None:
        given = {name.removeprefix(FIELD): t for name, t in form.items() if name.startswith(FIELD)}
        for name in given:
            if name not in base:
                raise ValueError(f"the system {system} has no parameter {name}")
        texts = {name: text_of(value) for name, (value, _) in base.items()} | given
        for name, text in texts.items():
            try:
                values[name] = parse(kinds[name], text)
            except ValueError as error:
                problems[name] = str(error)
    chosen = to_store(values, {name: value for name, (value, _) in base.items()}, stored)
    if form is not None and not problems:
        problems = errors_by_field(settings, system, chosen)
    fields = [
        Field(
            p.name,
            p.unit,
            p.description,
            kinds[p.name],
            base[p.name][0],
            p.default,
            p.value,
            texts[p.name],
            problems.get(p.name),
        )
        for p in holds
    ]
    config = system_config(settings, system, stored)
    return ParameterForm(system, config, fields, {} if problems else chosen)


def to_store(
    values: Mapping[str, Any], base: Mapping[str, Any], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values to store in a new version, with infinity as ``"inf"`` for JSON."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in stored and plain(stored[name]) == value:
            found[name] = stored[name]
        elif value != base[name]:
            found[name] = "inf" if value == math.inf else value
    return found


def plain(value: Any) -> Any:
    """Return the effective value of a stored one."""
    return math.inf if value == "inf" else value


def errors_by_field(
    settings: TuningSettings, system: str, chosen: Mapping[str, Any]
) -> dict[str, str]:
    """Return the errors of the chosen values by parameter; empty if they are valid."""
    message = _wrong(settings, system, chosen)
    if message is None:
        return {}
    names = [n for n, value in chosen.items() if _wrong(settings, system, {n: value}) == message]
    names = names or [
        name
        for name in chosen
        if _wrong(settings, system, {n: v for n, v in chosen.items() if n != name}) != message
    ]
    rest = {name: value for name, value in chosen.items() if name not in names}
    others = errors_by_field(settings, system, rest) if names else {}
    return {**others, **dict.fromkeys(names or chosen, message)}


def _wrong(settings: TuningSettings, system: str, chosen: Mapping[str, Any]) -> str | None:
    try:
        system_config(settings, system, chosen)
    except ValueError as error:
        return str(error)
    return None


def differences(
    old: tuple[str, Mapping[str, Any]], new: tuple[str, Mapping[str, Any]]
) -> list[ParameterChange]:
    """Return the differences between two versions: system and parameters.

    If the system differs, all parameters that differ from their defaults are included.
    """
    found: list[ParameterChange] = []
    before, after = old[1], new[1]
    if old[0] != new[0]:
        found.append(ParameterChange("system", old[0], new[0]))
        before = {}
    for name in dict.fromkeys((*before, *after)):
        texts = [text_of(plain(v[name])) if name in v else DEFAULT for v in (before, after)]
        if texts[0] != texts[1]:
            found.append(ParameterChange(name, *texts))
    return found
