"""Convert amounts of money between decimals, which people write, and the database's integers."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

NANO = 10**9
MICRO = 10**6


def amount_text(nano: int) -> str:
    """Return nanounits as a decimal number without trailing zeros: ``1.25``."""
    text = f"{Decimal(nano) / NANO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def nano_of(amount: Decimal) -> int:
    """Return an amount of the currency in nanounits, with halves rounded up."""
    return int((amount * NANO).to_integral_value(ROUND_HALF_UP))


def micro_of(price: Decimal) -> int:
    """Return a price per million tokens in micro-units, with halves rounded up."""
    return int((price * MICRO).to_integral_value(ROUND_HALF_UP))


def price_of(micro: int) -> Decimal:
    """Return the inverse of :func:`micro_of`."""
    return Decimal(micro) / MICRO


def _exact(value: object) -> object:
    """Convert a JSON float by its digits: ``0.1`` is a tenth, not the nearest binary float."""
    return str(value) if isinstance(value, float) else value


def _number(value: Decimal) -> float:
    return float(value)


Amount = Annotated[
    Decimal,
    BeforeValidator(_exact),
    Field(ge=0, le=MICRO * 1000, max_digits=18, decimal_places=9),
    PlainSerializer(_number, return_type=float, when_used="json"),
]
"""Money in the deployment's currency: up to 9 decimals, a number in JSON."""

TokenPriceAmount = Annotated[
    Decimal,
    BeforeValidator(_exact),
    Field(ge=0, le=MICRO, max_digits=13, decimal_places=6),
    PlainSerializer(_number, return_type=float, when_used="json"),
]
"""Price per million tokens: up to 6 decimals."""
