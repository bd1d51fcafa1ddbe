"""Bodies of ``/admin/prices``."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel

from fairserve.platform.base.money import TokenPriceAmount
from fairserve.platform.db.schemas import ModelName, Paging, Strict


class PriceCreate(Strict):
    """Prices of a million tokens of a model from a time on, in the deployment's currency."""

    model: ModelName
    """The served model, not an alias; ``*`` is every model without a price of its own."""
    input: TokenPriceAmount
    cached_input: TokenPriceAmount | None = None
    """Price of prompt tokens that were found in the cache; null is the price of ``input``."""
    output: TokenPriceAmount
    valid_from: AwareDatetime | None = None
    """Null is now. What calls have cost before does not change."""


class PriceQuery(Paging):
    """Which prices to list."""

    model: ModelName | None = None


class PriceOut(BaseModel):
    """A price, for a million tokens."""

    id: str
    model: str
    input: TokenPriceAmount
    cached_input: TokenPriceAmount
    output: TokenPriceAmount
    currency: str
    valid_from: datetime
    author: str
    created_at: datetime
