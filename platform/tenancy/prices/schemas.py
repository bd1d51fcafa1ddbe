"""Bodies of ``/admin/prices``."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel

from fairserve.platform.base.money import TokenPriceAmount
from fairserve.platform.db.schemas import Managed, ModelName, Paging, Strict


class PriceBody(Strict):
    """Prices per million tokens of a model from a time on, in the deployment's currency."""

    model: ModelName
    """The served model, not an alias; ``*`` is every model without its own price."""
    input: TokenPriceAmount
    cached_input: TokenPriceAmount | None = None
    """Price of cached prompt tokens; null is the price of ``input``."""
    output: TokenPriceAmount
    valid_from: AwareDatetime | None = None
    """Start of the price; null is now. Costs of earlier calls do not change."""


class PriceCreate(PriceBody, Managed):
    """A new price."""


class PriceQuery(Paging):
    """Filter of the list of prices."""

    model: ModelName | None = None


class PriceOut(BaseModel):
    """A price per million tokens."""

    id: str
    model: str
    input: TokenPriceAmount
    cached_input: TokenPriceAmount
    output: TokenPriceAmount
    currency: str
    valid_from: datetime
    author: str
    managed_by: str | None
    created_at: datetime
