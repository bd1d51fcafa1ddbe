"""Forms that change something: parsed into the API's own bodies, and stored as its requests are."""

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
"""Forms of quotas, by the API's names for them, which prefix the names of their fields."""

Wrong = dict[str, str]
"""Errors by field name; errors of the whole form under the empty name."""


def read(body: type[Body], given: Mapping[str, Any]) -> Body | Wrong:
    """Return the body, or its errors; a field within another is named by itself."""
    try:
        return body.model_validate(given)
    except ValidationError as error:
        return {
            str(problem["loc"][-1]) if problem["loc"] else "": _words(str(problem["msg"]))
            for problem in error.errors(include_input=False)
        }


def given(text: str | None) -> str | None:
    """Return a field's text; None if it is blank."""
    return (text or "").strip() or None


def store(request: Request, change: Callable[[Session], object]) -> Wrong:
    """Apply a change as one request of the API does; blocks. Return the errors of a rejected change.

    Raises errors that the form did not cause.
    """
    try:
        with contextmanager(write_session)(request) as session:
            change(session)
    except (InvalidRequestError, ConflictError) as error:
        return refused(error)
    return {}


def refused(error: FairServeError) -> Wrong:
    """Return the errors of a change that was rejected as a whole.

    The fields are valid by then, but a name can be taken, or limits of a quota can contradict.
    """
    param = error.param or ""
    shown = param == "name" or param.partition(".")[0] in CONTRACTS
    return {param if shown else "": error.message}


def _words(text: str) -> str:
    text = text.removeprefix("Value error, ").removeprefix("Input should be ")
    return f"Allowed: {text.partition(', unable')[0]}."
