"""Page of the token prices, for operators: with their history, new ones, and those that begin later."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.console import forms
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for
from fairserve.platform.console.lists import asked, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.session import read_session
from fairserve.platform.tenancy.prices.schemas import PriceCreate, PriceQuery
from fairserve.platform.tenancy.prices.service import Prices, prices_page

PAGE = ConsolePage("prices", "Prices", 82, "p", only_admin=True, within="settings")
router = APIRouter(prefix=PAGE.path)

NEW = "price."
"""Beginning of the fields' names in the form of a new price."""
REQUIRED = ("model", "input", "output")


@router.get("")
def show(request: Request, viewer: AdminViewer) -> Response:
    """Show all prices, past ones included."""
    return _page(request, viewer)


@router.post("")
def create(request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Set a price from now on, or from a later time on."""
    fields = forms.fields_of(form, PriceCreate, NEW)
    required = {name: fields.get(name) or "" for name in REQUIRED}
    body = forms.read(PriceCreate, {**fields, **required}, NEW)

    def store(session: Session, body: PriceCreate) -> None:
        _prices(request, viewer, session).create(body)

    wrong = forms.store_valid(request, form, body, store, NEW)
    if wrong:
        return _page(request, viewer, given=form, wrong=wrong)
    return RedirectResponse(f"{PAGE.path}?done=price", status_code=303)


@router.post("/{price_id}/delete")
def delete(price_id: str, request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Delete a price that is not in force yet."""
    wrong = forms.store(
        request, form, lambda session: _prices(request, viewer, session).delete(price_id)
    )
    if wrong:
        return _page(request, viewer, given=form, wrong=wrong)
    return RedirectResponse(f"{PAGE.path}?done=price_deleted", status_code=303)


def _prices(request: Request, viewer: Viewer, session: Session) -> Prices:
    state = request.app.state
    currency = state.settings.tenancy.currency
    return Prices(session, acting_for(viewer), state.control, state.session_factory, currency)


def _page(
    request: Request,
    viewer: Viewer,
    *,
    given: Mapping[str, str] = forms.NOTHING,
    wrong: forms.Wrong = forms.NOTHING,
) -> Response:
    currency = request.app.state.settings.tenancy.currency
    with contextmanager(read_session)(request) as session:
        found = prices_page(session, asked(request, PriceQuery), currency)
    return page(
        request,
        viewer,
        "prices",
        status=400 if wrong else 200,
        prices=found.items,
        now=utc_now(),
        filters=filters(request),
        part=part_of(found),
        place=place(request),
        given=given,
        wrong=wrong,
    )
