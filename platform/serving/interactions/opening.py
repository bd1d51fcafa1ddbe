"""Read the body that opens a run: an empty one, or a program.

Programs may be large and their checks take time, so a long body is read in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from fairserve.interactions.programs.declared import ProgramIn
from fairserve.interactions.programs.program import Program, ProgramLimits
from fairserve.interactions.tracking.identity import IdentityError, checked_id
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.body_part import without_nulls
from fairserve.platform.serving.completions.requests import read_object
from fairserve.platform.serving.completions.schemas import invalid
from fairserve.platform.serving.interactions.schemas import InteractionCreate
from fairserve.platform.serving.programs.declaration import read_program


@dataclass(frozen=True, slots=True)
class Opening:
    """A valid body."""

    run: InteractionCreate
    program: Program | None = None
    declaration: Mapping[str, Any] = field(default_factory=dict)
    size_bytes: int = 0


async def read_opening(raw: bytes, limits: ProgramLimits) -> Opening:
    """Read a body; none opens an empty run. Raises InvalidRequestError naming the field."""
    return await off_loop(len(raw), _read, raw, limits)


def _read(raw: bytes, limits: ProgramLimits) -> Opening:
    plain = {} if raw.strip() in (b"", b"null") else without_nulls(read_object(raw))
    declaration = {name: plain.pop(name) for name in ProgramIn.model_fields if name in plain}
    try:
        run = InteractionCreate.model_validate(plain)
    except ValidationError as error:
        raise invalid(error, plain) from error
    for name in ("id", "sink"):
        value = getattr(run, name)
        if value is not None:
            setattr(run, name, checked(value, name))
    if all(value is None for value in declaration.values()):
        return Opening(run)
    if run.sink is not None:
        raise InvalidRequestError(
            "sink: a program ends by itself; name its result instead", param="sink"
        )
    return Opening(run, read_program(declaration, limits), declaration, len(raw))


def checked(text: str, field_name: str = "id") -> str:
    """Return an id that a client chose, if it is valid. Raises InvalidRequestError."""
    try:
        return checked_id(text, field_name)
    except IdentityError as error:
        raise InvalidRequestError(str(error), param=field_name) from error
