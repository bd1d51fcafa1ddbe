"""``/admin/prices``: token prices with their history. A current or past price never changes: the cost in
a ledger row can be traced to its price.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, status
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, InvalidRequestError, NotFoundError
from fairserve.platform.base.money import micro_of, price_of
from fairserve.platform.db import audit
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.contracts import Price
from fairserve.platform.db.rows import count, read_page
from fairserve.platform.db.schemas import Page, view_of
from fairserve.platform.db.session import ReadSession, WriteSession, after_commit
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.platform.tenancy.prices import repository
from fairserve.platform.tenancy.prices.schemas import PriceCreate, PriceOut, PriceQuery
from fairserve.platform.tenancy.principals import AdminPrincipal, require_admin

MAX_PRICES = 10_000
LATEST = datetime(2100, 1, 1, tzinfo=UTC)

router = APIRouter(prefix="/admin/prices")


@router.get("", dependencies=[Depends(require_admin)])
def list_prices(
    request: Request, session: ReadSession, query: Annotated[PriceQuery, Query()]
) -> Page[PriceOut]:
    """Return all prices including past ones, by model and then newest first."""
    rows, total = read_page(session, repository.listed(query.model), query)
    currency = request.app.state.settings.tenancy.currency
    return Page.of([_out(row, currency) for row in rows], total, query)


@router.post("", status_code=status.HTTP_201_CREATED)
def create_price(
    body: PriceCreate, request: Request, session: WriteSession, principal: AdminPrincipal
) -> PriceOut:
    """Set a price for calls that are accepted from now on, or from a later time on."""
    now = utc_now()
    begins = body.valid_from or now
    if not now - timedelta(seconds=1) <= begins <= LATEST:
        raise InvalidRequestError(
            f"valid_from is {begins.isoformat()}; must be between now and {LATEST.year}: costs of"
            " past calls do not change",
            param="valid_from",
        )
    if count(session, repository.listed()) >= MAX_PRICES:
        raise ConflictError(f"the limit of {MAX_PRICES} prices is reached", code="too_many_prices")
    if repository.at(session, body.model, begins) is not None:
        raise ConflictError("the model has a price with this valid_from", param="valid_from")
    cached = body.input if body.cached_input is None else body.cached_input
    row = Price(
        id=new_id("price"),
        model=body.model,
        valid_from=begins,
        input_tokens=micro_of(body.input),
        cached_tokens=micro_of(cached),
        output_tokens=micro_of(body.output),
        author=principal.actor,
        created_at=now,
    )
    session.add(row)
    session.flush()
    audit.record(session, principal, "price.create", row.id, after=_audited(row))
    _changed(request, session)
    return _out(row, request.app.state.settings.tenancy.currency)


@router.delete("/{price_id}")
def delete_price(
    price_id: str, request: Request, session: WriteSession, principal: AdminPrincipal
) -> PriceOut:
    """Delete a price that is not in force yet."""
    row = session.get(Price, price_id, with_for_update=True)
    if row is None:
        raise NotFoundError("there is no such price", param="price_id")
    if row.valid_from <= utc_now():
        raise ConflictError(
            "the price is in force; create a later one instead",
            code="price_holds",
            param="price_id",
        )
    session.delete(row)
    audit.record(session, principal, "price.delete", row.id, before=_audited(row))
    _changed(request, session)
    return _out(row, request.app.state.settings.tenancy.currency)


def _changed(request: Request, session: Session) -> None:
    state = request.app.state
    control: ControlInbox = state.control

    def use_prices() -> None:
        with state.session_factory() as reading:
            control.use_prices(repository.load_book(reading))

    after_commit(session, use_prices)


def _audited(row: Price) -> dict[str, Any]:
    return {
        "model": row.model,
        "valid_from": row.valid_from.isoformat(),
        "input": str(price_of(row.input_tokens)),
        "cached_input": str(price_of(row.cached_tokens)),
        "output": str(price_of(row.output_tokens)),
    }


def _out(row: Price, currency: str) -> PriceOut:
    return view_of(
        PriceOut,
        row,
        input=price_of(row.input_tokens),
        cached_input=price_of(row.cached_tokens),
        output=price_of(row.output_tokens),
        currency=currency,
    )
