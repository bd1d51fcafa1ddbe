"""The fields of a declared program, read by pydantic: an error names the path and the allowed range.

Models of the declaration derive from :class:`Declared`, and their fields have the types below. The JSON
schema of a model is the API's description. Before any field is read, :func:`require_bounded` walks the
whole structure without recursion and stops at its limits, so that a huge or deep declaration costs no
more than an allowed one to reject.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

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


class Declared(BaseModel):
    """An object of the declaration. It has no other fields than these, and values keep their types."""

    model_config = ConfigDict(
        extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, plain: object) -> object:
        if not isinstance(plain, Mapping):
            raise invalid(f"must be an object, not {kind(plain)}")
        for name, value in plain.items():
            if name not in cls.model_fields and value is not None:
                allowed = ", ".join(cls.model_fields)
                raise invalid(f"is not known here; allowed: {allowed}", at=str(name))
        absent = [name for name, each in cls.model_fields.items() if each.is_required()]
        known = {name: value for name, value in plain.items() if name in cls.model_fields}
        return {**dict.fromkeys(absent), **known}  # null is as good as absent

    @classmethod
    def read(cls, plain: object, path: str, context: object = None) -> Self:
        """Return the object at ``path``. Raises ProgramError for the first field that is wrong."""
        try:
            return cls.model_validate(plain, context=context)
        except ValidationError as error:
            raise _program_error(path, error.errors(include_url=False)[0]) from None


def invalid(message: str, *, at: str = "") -> PydanticCustomError:
    """Return the error of a validator; ``at`` is a field below the validated value."""
    return PydanticCustomError("program", "{message}", {"message": message, "at": at})


def printable(max_chars: int) -> BeforeValidator:
    """Return the check of a printable text without surrounding space."""

    def check(value: object) -> object:
        if not isinstance(value, str):
            raise invalid(f"must be a string, not {kind(value)}")
        if not 0 < len(value) <= max_chars:
            raise invalid(f"has {len(value)} characters; allowed: 1 to {max_chars}")
        if not value.isprintable() or value != value.strip():
            raise invalid(f"is {shown(value)}; allowed: printable, no space around it")
        return value

    return BeforeValidator(check)


@dataclass(frozen=True)
class Within:
    """The check of a whole number in a range, which the schema names, too."""

    least: int
    most: int

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of the number with its check."""
        number = core_schema.int_schema(ge=self.least, le=self.most)
        return core_schema.no_info_before_validator_function(self._check, number)

    def _check(self, value: object) -> int:
        return checked_integer(value, self.least, self.most)


def checked_integer(value: object, least: int, most: int) -> int:
    """Return a whole number in a range. Raises the error of a validator."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(f"must be a whole number, not {kind(value)}")
    if not least <= value <= most:
        raise invalid(f"is {_number(value)}; allowed: {least} to {most}")
    return value


def _reference(value: object) -> object:
    if not isinstance(value, str):
        raise invalid(f"must be the id of a node, not {kind(value)}")
    return value


NodeReference = Annotated[str, BeforeValidator(_reference)]
"""The id of a node. That the node exists is checked later."""


def _program_error(path: str, error: ErrorDetails) -> ProgramError:
    """Return pydantic's error with its path, the value and the allowed range."""
    context, names = error.get("ctx", {}), [*error["loc"]]
    value = error.get("input")
    match error["type"]:
        case "program":
            message = context["message"]
            if context["at"]:
                names.append(context["at"])
        case "too_short":
            message = "is empty"
        case "list_type":
            message = f"must be a list, not {kind(value)}"
        case "dict_type":
            message = f"must be an object, not {kind(value)}"
        case _ if names and names[-1] == "[key]":
            names, message = names[:-2], f"has a key that is {kind(value)}, not a string"
        case _:
            message = f"must be a string, not {kind(value)}"
    for name in names:
        path = _below(path, name)
    return ProgramError(path, message)


def _below(path: str, name: str | int) -> str:
    if isinstance(name, int):
        return f"{path}[{name}]"
    name = name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}..."
    return f"{path}.{name}" if path else name


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
