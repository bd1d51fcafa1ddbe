"""Queries on the price table."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from fairserve.platform.db.contracts import Price
from fairserve.platform.db.engine import read_only
from fairserve.platform.tenancy.prices.book import PriceBook, entry_of


def load_book(session: Session) -> PriceBook:
    """Return all prices with their history."""
    return PriceBook(entry_of(row) for row in read_only(session).scalars(select(Price)))


def listed(model: str | None = None) -> Select[Price]:
    """Return the statement of the prices of one model or of all, by model and then newest first."""
    statement = select(Price).order_by(Price.model, Price.valid_from.desc())
    return statement if model is None else statement.where(Price.model == model)


def at(session: Session, model: str, valid_from: datetime) -> Price | None:
    """Return the price of a model with exactly this start."""
    return session.scalars(
        select(Price).where(Price.model == model, Price.valid_from == valid_from)
    ).first()
