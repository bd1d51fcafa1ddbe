"""Queries on the price table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.contracts import Price
from fairserve.platform.db.engine import read_only
from fairserve.platform.tenancy.prices.book import PriceBook, entry_of


def load_book(session: Session) -> PriceBook:
    """Return all prices with their history."""
    return PriceBook(entry_of(row) for row in read_only(session).scalars(select(Price)))


def page(
    session: Session, model: str | None, limit: int, offset: int
) -> tuple[Sequence[Price], int]:
    """Return a page of the table, by model and then newest first, and the table's length."""
    conditions = [] if model is None else [Price.model == model]
    rows = session.scalars(
        select(Price)
        .where(*conditions)
        .order_by(Price.model, Price.valid_from.desc())
        .limit(limit)
        .offset(offset)
    ).all()
    return rows, count(session, model)


def count(session: Session, model: str | None = None) -> int:
    """Return the number of prices, of one model or of all."""
    conditions = [] if model is None else [Price.model == model]
    return session.scalar(select(func.count(Price.id)).where(*conditions)) or 0


def at(session: Session, model: str, valid_from: datetime) -> Price | None:
    """Return the price of a model with exactly this start."""
    return session.scalars(
        select(Price).where(Price.model == model, Price.valid_from == valid_from)
    ).first()
