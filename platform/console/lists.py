"""Queries and positions of paged lists."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from fastapi import Request
from pydantic import BaseModel, ValidationError

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.validation import text_of
from fairserve.platform.console.guard import scoped
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.schemas import Page

PER_PAGE = 50
"""Rows of a page; fewer where rows are high, so that no page is longer than three screens."""
_OURS = frozenset({"done"})

Query = TypeVar("Query", bound=BaseModel)


class ListPart(NamedTuple):
    """The part of a list that a page shows."""

    offset: int
    limit: int
    shown: int
    total: int | None
    """Total number of entries; None if counting is too expensive."""
    has_more: bool


def asked(request: Request, query: type[Query], per_page: int = PER_PAGE, **forced: Any) -> Query:
    """Return the query in the URL; blank fields are omitted.

    Raises InvalidRequestError, which names the field.
    """
    given: dict[str, Any] = {**filters(request), **forced}
    if "limit" in query.model_fields:
        given.setdefault("limit", per_page)
    try:
        return query.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        field = ".".join(str(each) for each in problem["loc"])
        text = text_of(problem)
        raise InvalidRequestError(f"{field}: {text}", param=field) from None


def asked_in(
    request: Request, viewer: Viewer, query: type[Query], per_page: int = PER_PAGE
) -> Query:
    """Return the query in the URL, within the tenant of the viewer or the one that an operator names."""
    tenant = scoped(viewer, filters(request).get("tenant"), request)
    return asked(request, query, per_page, **({} if tenant is None else {"tenant": tenant}))


def filters(request: Request) -> dict[str, str]:
    """Return the non-blank fields of the URL."""
    return {
        name: value
        for name, value in request.query_params.items()
        if value.strip() and name not in _OURS
    }


def part_of(page: Page[Any]) -> ListPart:
    """Return the position of a page within its list."""
    end = page.offset + len(page.items)
    return ListPart(page.offset, page.limit, len(page.items), page.total, end < page.total)


def place(request: Request) -> str:
    """Return the page's URL with its filters, to which ``&offset=`` can be appended."""
    kept = {name: value for name, value in filters(request).items() if name != "offset"}
    return f"{request.url.path}?{urlencode(kept)}"
