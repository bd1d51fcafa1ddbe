"""Bodies of the limits of one quota subject; amounts are in the currency.

The schema checks each field; :mod:`fairserve.platform.tenancy.quotas.service` checks their combination,
including fields that a change leaves unchanged.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from fairserve.platform.base.money import Amount
from fairserve.platform.db.schemas import ModelName, Strict
from fairserve.throttling.quotas.periods import parse_duration
from fairserve.throttling.quotas.quota import MAX_LIMIT, SoftEnd

MAX_MODELS = 100

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


def _duration(text: str) -> str:
    parse_duration(text)
    return text


Duration = Annotated[str, AfterValidator(_duration)]


class ContractBody(Strict):
    """A change of limits: omitted fields are unchanged, null is no limit."""

    rpm_limit: Limit | None = None
    """Calls in any 60 seconds."""
    tpm_limit: Limit | None = None
    """Prompt and output tokens in any 60 seconds."""
    max_parallel_requests: Limit | None = None
    """Calls in progress, waiting or running."""
    max_budget: Amount | None = None
    """Hard budget of each period."""
    soft_budget: Amount | None = None
    soft_end: SoftEnd | None = None
    """Action beyond ``soft_budget``: a warning in responses (``warn`` or null), or no new runs."""
    budget_duration: Duration | None = None
    allowed_models: (
        Annotated[list[ModelName], Field(min_length=1, max_length=MAX_MODELS)] | None
    ) = None
    """Model names that calls may request; null is any."""


class ContractOut(BaseModel):
    """The limits in force; null is no limit."""

    rpm_limit: int | None = None
    tpm_limit: int | None = None
    max_parallel_requests: int | None = None
    max_budget: Amount | None = None
    soft_budget: Amount | None = None
    soft_end: SoftEnd = "warn"
    budget_duration: str | None = None
    allowed_models: list[str] | None = None
