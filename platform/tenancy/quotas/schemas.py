"""The limits of one holder as the API takes and shows them; amounts are in the currency.

Every field is checked by itself here; whether they go together,
:mod:`fairserve.platform.tenancy.quotas.service` knows, which has those that a change leaves as they are.
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
    """A change of limits: what is left out stays, and null is no limit."""

    rpm_limit: Limit | None = None
    """Calls in any 60 seconds."""
    tpm_limit: Limit | None = None
    """Prompt and output tokens in any 60 seconds."""
    max_parallel_requests: Limit | None = None
    """Calls in progress, waiting or running."""
    max_budget: Amount | None = None
    """The hard end of each period."""
    soft_budget: Amount | None = None
    soft_end: SoftEnd | None = None
    """Beyond ``soft_budget``: answers carry a warning (``warn``, or null), or no new run begins."""
    budget_duration: Duration | None = None
    allowed_models: (
        Annotated[list[ModelName], Field(min_length=1, max_length=MAX_MODELS)] | None
    ) = None
    """Names that calls may ask for; null is any."""


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
