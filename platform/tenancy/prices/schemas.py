"""Bodies of ``/admin/prices``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, Field

from fairserve.platform.base.money import TokenPriceAmount
from fairserve.platform.db.schemas import Managed, ModelName, Paging, Strict

PriceMultiplier = Annotated[float, Field(ge=0, le=100)]


class PriceBody(Strict):
    """Prices per million tokens of a model from a time on, in the deployment's currency."""

    model: ModelName
    """The served model, not an alias; ``*`` is every model without its own price."""
    input: TokenPriceAmount
    cached_input: TokenPriceAmount | None = None
    """Price of cached prompt tokens; null is the price of ``input``."""
    output: TokenPriceAmount
    reasoning: TokenPriceAmount | None = None
    """Price of the part of the output that workers report as reasoning; null is that of ``output``."""
    flex_multiplier: PriceMultiplier = 1.0
    """Factor on the prices for calls of the tier ``flex``, and of batches."""
    priority_multiplier: PriceMultiplier = 1.0
    """Factor for calls of the tier ``priority``."""
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
    reasoning: TokenPriceAmount
    flex_multiplier: float
    priority_multiplier: float
    currency: str
    valid_from: datetime
    author: str
    managed_by: str | None
    created_at: datetime
