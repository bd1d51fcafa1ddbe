"""``/admin/prices``: token prices with their history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, status

from fairserve.platform.db.schemas import Page
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.prices.schemas import PriceCreate, PriceOut, PriceQuery
from fairserve.platform.tenancy.prices.service import Prices, prices_page
from fairserve.platform.tenancy.principals import AdminPrincipal, require_admin

router = APIRouter(prefix="/admin/prices")


def _prices(request: Request, session: WriteSession, principal: AdminPrincipal) -> Prices:
    state = request.app.state
    currency = state.settings.tenancy.currency
    return Prices(session, principal, state.control, state.session_factory, currency)


WritablePrices = Annotated[Prices, Depends(_prices, scope="function")]


@router.get("", dependencies=[Depends(require_admin)])
def list_prices(
    request: Request, session: ReadSession, query: Annotated[PriceQuery, Query()]
) -> Page[PriceOut]:
    """Return all prices including past ones, by model and then newest first."""
    return prices_page(session, query, request.app.state.settings.tenancy.currency)


@router.post("", status_code=status.HTTP_201_CREATED)
def create_price(body: PriceCreate, prices: WritablePrices) -> PriceOut:
    """Set a price for calls that are accepted from now on, or from a later time on."""
    return prices.create(body)


@router.delete("/{price_id}")
def delete_price(price_id: str, prices: WritablePrices) -> PriceOut:
    """Delete a price that is not in force yet."""
    return prices.delete(price_id)
