"""Parse forms into bodies of the API, and apply them like its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, FairServeError, InvalidRequestError
from fairserve.platform.base.validation import text_of
from fairserve.platform.db.session import write_session
from fairserve.platform.tenancy.quotas.schemas import ContractBody

Body = TypeVar("Body", bound=BaseModel)
CONTRACTS = ("contract", "user_contract")
"""Names of quotas in the API, which prefix their field names in forms."""

Wrong = dict[str, str]
"""Errors by field name; those of the whole form have the empty name."""


def read(body: type[Body], given: Mapping[str, Any]) -> Body | Wrong:
    """Return the body, or its errors; a nested field has its own name, an item that of its list."""
    try:
        return body.model_validate(given)
    except ValidationError as error:
        return dict(
            _problem(problem["loc"], _words(text_of(problem)))
            for problem in error.errors(include_input=False)
        )


def _problem(location: tuple[int | str, ...], text: str) -> tuple[str, str]:
    """Return the field of an error and its text, which names the line of a list's item."""
    *outer, last = location or ("",)
    if isinstance(last, int) and outer:
        return str(outer[-1]), f"Line {last + 1}: {text}"
    return str(last), text


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
    request: Request, body: Body | Wrong, change: Callable[[Session, Body], object]
) -> Wrong:
    """Apply a valid body by :func:`store`; return its errors, or those of the change."""
    if isinstance(body, dict):
        return body
    return store(request, lambda session: change(session, body))


def store(request: Request, change: Callable[[Session], object]) -> Wrong:
    """Apply a change like a request of the API. Blocks. Return the errors of a rejected change.

    Raises errors that are not caused by the form.
    """
    try:
        with contextmanager(write_session)(request) as session:
            change(session)
    except (InvalidRequestError, ConflictError) as error:
        return refused(error)
    return {}


def refused(error: FairServeError) -> Wrong:
    """Return the errors of a change that the service rejected.

    Its fields are valid, but for example a name is taken or limits of a quota contradict each other.
    """
    param = error.param or ""
    shown = param in ("name", "cors_origins") or param.partition(".")[0] in CONTRACTS
    return {param if shown else "": error.message}


def _words(text: str) -> str:
    text = text.partition(", unable")[0]
    allowed = text.removeprefix("Input should be ")
    return f"Must be {allowed}." if allowed != text else f"Invalid: {text}."
