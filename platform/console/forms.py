"""Forms that change something: read into the API's own bodies, and stored as its requests are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, FairServeError, InvalidRequestError
from fairserve.platform.db.session import write_session

Body = TypeVar("Body", bound=BaseModel)
CONTRACTS = ("contract", "user_contract")
"""Forms of contracts, by the API's names for them, which stand before those of their fields."""

Wrong = dict[str, str]
"""What is wrong, by the field's name; what is wrong as a whole under the empty name."""


def read(body: type[Body], given: Mapping[str, Any]) -> Body | Wrong:
    """The body, or what is wrong with it; a field within another is named by itself."""
    try:
        return body.model_validate(given)
    except ValidationError as error:
        return {
            str(problem["loc"][-1]) if problem["loc"] else "": _words(str(problem["msg"]))
            for problem in error.errors(include_input=False)
        }


def given(text: str | None) -> str | None:
    """A field's text; what was left blank is not given."""
    return (text or "").strip() or None


def store(request: Request, change: Callable[[Session], object]) -> Wrong:
    """Change something as one request of the API would; blocks. Returns why it was refused, if it was.

    Raises what is not the form's fault.
    """
    try:
        with contextmanager(write_session)(request) as session:
            change(session)
    except (InvalidRequestError, ConflictError) as error:
        return refused(error)
    return {}


def refused(error: FairServeError) -> Wrong:
    """Of a whole change: the fields of bodies have been read by then, but names can be taken, and the
    limits of a contract may not go together.
    """
    param = error.param or ""
    shown = param == "name" or param.partition(".")[0] in CONTRACTS
    return {param if shown else "": error.message}


def _words(text: str) -> str:
    text = text.removeprefix("Value error, ").removeprefix("Input should be ")
    return f"Allowed: {text.partition(', unable')[0]}."
