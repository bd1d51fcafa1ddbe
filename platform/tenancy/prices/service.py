"""Operations on token prices: list, create, and delete those that are not in force yet.

A current or past price never changes: the cost in a ledger row can be traced to its price. Control
receives all prices after the commit of a change.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, InvalidRequestError, NotFoundError
from fairserve.platform.base.money import micro_of, price_of
from fairserve.platform.db import audit
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.contracts import Price
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.rows import count, read_page
from fairserve.platform.db.schemas import Page, view_of
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.prices import repository
from fairserve.platform.tenancy.prices.schemas import PriceCreate, PriceOut, PriceQuery

MAX_PRICES = 10_000
LATEST = datetime(2100, 1, 1, tzinfo=UTC)


class Prices:
    """The prices within one request of an operator; ``sessions`` reads them after the commit."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        control: ControlInbox,
        sessions: SessionFactory,
        currency: str,
    ) -> None:
        self._session = session
        self._principal = principal
        self._control = control
        self._sessions = sessions
        self._currency = currency

    def create(self, body: PriceCreate) -> PriceOut:
        """Set a price for calls that are accepted from now on, or from a later time on.

        Raises InvalidRequestError for a past start, and ConflictError for a start that the model has.
        """
        now = utc_now()
        begins = body.valid_from or now
        if not now - timedelta(seconds=1) <= begins <= LATEST:
            raise InvalidRequestError(
                f"valid_from is {begins.isoformat()}; must be between now and {LATEST.year}: costs of"
                " past calls do not change",
                param="valid_from",
            )
        if count(self._session, repository.listed()) >= MAX_PRICES:
            raise ConflictError(
                f"the limit of {MAX_PRICES} prices is reached", code="too_many_prices"
            )
        if repository.at(self._session, body.model, begins) is not None:
            raise ConflictError("the model has a price with this valid_from", param="valid_from")
        cached = body.input if body.cached_input is None else body.cached_input
        row = Price(
            id=new_id("price"),
            model=body.model,
            valid_from=begins,
            input_tokens=micro_of(body.input),
            cached_tokens=micro_of(cached),
            output_tokens=micro_of(body.output),
            reasoning_tokens=None if body.reasoning is None else micro_of(body.reasoning),
            flex_multiplier=body.flex_multiplier,
            priority_multiplier=body.priority_multiplier,
            author=self._principal.actor,
            managed_by=body.managed_by,
            created_at=now,
        )
        self._session.add(row)
        self._session.flush()
        audit.record(self._session, self._principal, "price.create", row.id, after=_audited(row))
        after_commit(self._session, self._use_prices)
        return _out(row, self._currency)

    def delete(self, price_id: str) -> PriceOut:
        """Delete a price that is not in force yet. Raises ConflictError for one that is."""
        row = self._session.get(Price, price_id, with_for_update=True)
        if row is None:
            raise NotFoundError("there is no such price", param="price_id")
        if row.valid_from <= utc_now():
            raise ConflictError(
                "the price is in force; create a later one instead",
                code="price_holds",
                param="price_id",
            )
        self._session.delete(row)
        audit.record(self._session, self._principal, "price.delete", row.id, before=_audited(row))
        after_commit(self._session, self._use_prices)
        return _out(row, self._currency)

    def _use_prices(self) -> None:
        with self._sessions() as reading:
            self._control.use_prices(repository.load_book(reading))


def prices_page(session: Session, query: PriceQuery, currency: str) -> Page[PriceOut]:
    """Return all prices including past ones, by model and then newest first."""
    rows, total = read_page(session, repository.listed(query.model), query)
    return Page.of([_out(row, currency) for row in rows], total, query)


def _audited(row: Price) -> dict[str, Any]:
    return {
        "model": row.model,
        "valid_from": row.valid_from.isoformat(),
        "input": str(price_of(row.input_tokens)),
        "cached_input": str(price_of(row.cached_tokens)),
        "output": str(price_of(row.output_tokens)),
        "reasoning": str(_reasoning(row)),
        "flex_multiplier": row.flex_multiplier,
        "priority_multiplier": row.priority_multiplier,
        "managed_by": row.managed_by,
    }


def _reasoning(row: Price) -> Decimal:
    return price_of(row.output_tokens if row.reasoning_tokens is None else row.reasoning_tokens)


def _out(row: Price, currency: str) -> PriceOut:
    return view_of(
        PriceOut,
        row,
        input=price_of(row.input_tokens),
        cached_input=price_of(row.cached_tokens),
        output=price_of(row.output_tokens),
        reasoning=_reasoning(row),
        currency=currency,
    )
