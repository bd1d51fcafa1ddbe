"""Parse forms into bodies of the API, and apply them like its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, FairServeError, InvalidRequestError
from fairserve.platform.base.validation import text_of
from fairserve.platform.db.schemas import FieldError
from fairserve.platform.db.session import write_session
from fairserve.platform.tenancy.quotas.schemas import ContractBody

Body = TypeVar("Body", bound=BaseModel)
Made = TypeVar("Made")
CONTRACTS = ("contract", "user_contract")
"""Names of quotas in the API, which prefix their field names in forms."""

Wrong = dict[str, str]
"""Errors by field name; those of the whole form have the empty name."""
NOTHING: Wrong = {}
"""No errors, or no entries. Never changed."""


def read(body: type[Body], given: Mapping[str, Any], prefix: str = "") -> Body | Wrong:
    """Return the body, or its errors, by the fields of the form, whose names begin with ``prefix``.

    A nested field has its own name, an item that of its list.
    """
    try:
        return body.model_validate(given)
    except ValidationError as error:
        return {
            prefix + field if field else "": text
            for field, text in (
                _problem(problem, body) for problem in error.errors(include_input=False)
            )
        }


def _problem(problem: ErrorDetails, body: type[BaseModel]) -> tuple[str, str]:
    """Return the field of an error and its text, which names the line of a list's item.

    The error of a check across fields names its field, or begins with it; else it is of the whole form.
    """
    text = _words(text_of(problem))
    if not problem["loc"]:
        error = problem.get("ctx", {}).get("error")
        field = error.field if isinstance(error, FieldError) else text_of(problem).partition(" ")[0]
        return field if field in body.model_fields else "", text
    *outer, last = problem["loc"]
    if isinstance(last, int) and outer:
        return str(outer[-1]), f"Line {last + 1}: {text}"
    return str(last), text


def fields_of(form: Mapping[str, str], body: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return the texts of the body's fields that a form has, None for blank ones."""
    return {name: given(form[prefix + name]) for name in body.model_fields if prefix + name in form}


def given(text: str | None) -> str | None:
    """Return a field's text; None if it is blank."""
    return (text or "").strip() or None


def lines(text: str | None) -> list[str]:
    """Return the lines of a field that are not blank."""
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


def contract_of(form: Mapping[str, str], name: str) -> ContractBody | Wrong:
    """Return the limits in the form of the quota ``name``; a blank field is no limit."""
    limits: dict[str, Any] = {
        limit: given(form.get(f"{name}.{limit}")) for limit in ContractBody.model_fields
    }
    if limits["allowed_models"] is not None:
        limits["allowed_models"] = lines(limits["allowed_models"])
    body = read(ContractBody, limits)
    if isinstance(body, ContractBody):
        return body
    return {f"{name}.{limit}": text for limit, text in body.items()}


def store_valid(
    request: Request,
    form: Mapping[str, str],
    body: Body | Wrong,
    change: Callable[[Session, Body], object],
    prefix: str = "",
) -> Wrong:
    """Apply a valid body by :func:`store`; return its errors, or those of the change."""
    if isinstance(body, dict):
        return body
    return store(request, form, lambda session: change(session, body), prefix)


def store(
    request: Request,
    form: Mapping[str, str],
    change: Callable[[Session], object],
    prefix: str = "",
) -> Wrong:
    """Apply a change by :func:`make`; return its errors."""
    made = make(request, form, change, prefix)
    return made if isinstance(made, dict) else {}


def make(
    request: Request, form: Mapping[str, str], change: Callable[[Session], Made], prefix: str = ""
) -> Made | Wrong:
    """Apply a change like a request of the API. Blocks. Return what it made, or its errors.

    Raises errors that are not caused by the form.
    """
    try:
        with contextmanager(write_session)(request) as session:
            return change(session)
    except (InvalidRequestError, ConflictError) as error:
        return refused(error, form, prefix)


def refused(error: FairServeError, form: Mapping[str, str], prefix: str = "") -> Wrong:
    """Return the errors of a change that the service rejected, at their field if the form has it.

    Its fields are valid, but for example a name is taken or limits of a quota contradict each other.
    """
    field = f"{prefix}{error.param}"
    return {field if field in form else "": error.message}


def _words(text: str) -> str:
    text = text.partition(", unable")[0]
    allowed = text.removeprefix("Input should be ")
    return f"Must be {allowed}." if allowed != text else f"Invalid: {text}."
