"""Query and answer of the usage reports."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    model_validator,
)

from fairserve.platform.db.schemas import FieldError, ModelName, ObjectId, Page, Paging, UserId

Group = Literal["tenant", "app", "user", "model", "day", "hour"]
GROUPS: tuple[Group, ...] = ("tenant", "app", "user", "model", "day", "hour")

Format = Literal["json", "csv", "parquet", "html"]

InteractionState = Literal["complete", "aborted", "cancelled", "expired"]

Cost = Annotated[Decimal, PlainSerializer(float, return_type=float, when_used="json")]


def _split(value: Any) -> Any:
    """``group_by=app,day`` and ``group_by=app&group_by=day`` mean the same."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return [part for item in value for part in str(item).split(",") if part]
    return value


class UsageFilter(Paging):
    """Whose usage, and when. Days are those of ``zone``, both ends included."""

    tenant: ObjectId | None = None
    app: ObjectId | None = None
    user: UserId | None = None
    first_day: date | None = Field(None, alias="from")
    last_day: date | None = Field(None, alias="to")
    zone: str = Field("UTC", max_length=64)

    @model_validator(mode="after")
    def _check_days(self) -> Self:
        if self.first_day and self.last_day and self.first_day > self.last_day:
            raise FieldError("from", "from is after to")
        return self


class UsageQuery(UsageFilter):
    """What to sum. ``tenant`` is for admin keys; ``zone`` is an IANA name."""

    model: ModelName | None = None
    group_by: Annotated[list[Group], BeforeValidator(_split), Field(max_length=6)] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if len(set(self.group_by)) != len(self.group_by):
            raise FieldError("group_by", "group_by names a group twice")
        return self


class UsageRequest(UsageQuery):
    """A report over HTTP."""

    format: Format = "json"


class Quantiles(BaseModel):
    """Of a duration, in seconds; null where nothing was measured."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    count: int = 0


class InteractionCounts(BaseModel):
    """Interactions that ended, by how."""

    complete: int = 0
    aborted: int = 0
    cancelled: int = 0
    expired: int = 0


class WastedByCause(BaseModel):
    """Tokens of interactions that came to nothing, by why."""

    throttled: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0


class Fairness(BaseModel):
    """A group's share of the service beside the share that weights and levels entitle it to.

    The service is counted as the system in force counts it
    (:mod:`fairserve.platform.reporting.usage.fairness`). Both are of the groups with service, of the
    same day or hour where the report has those.
    """

    service_share: float
    entitled_share: float


class Sums(BaseModel):
    """Sums over charged calls; attempts that were not charged are counted apart, and only counted."""

    calls: int = 0
    completed: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0
    uncharged_calls: int = 0
    input_tokens: int = 0
    """Tokens of whole prompts: system tokens and cached tokens are parts of them."""
    system_tokens: int = 0
    """Prompt tokens of leading system messages."""
    cached_tokens: int = 0
    """Prompt tokens that a worker had cached."""
    extend_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0
    """Input tokens plus twice the output tokens, cached ones included."""
    wasted_tokens: int = 0
    """Input and output tokens of calls that did not complete."""


class Usage(Sums):
    """All that is told of a group. Interactions and refusals have no model: null by model."""

    cost: Cost = Decimal(0)
    """In the currency of the report."""
    unpriced_calls: int = 0
    """Calls with tokens whose model had no price."""
    interactions: InteractionCounts | None = None
    wasted_by_cause: WastedByCause | None = None
    refusals: dict[str, int] | None = None
    """By reason."""
    queue_delay_s: Quantiles = Field(default_factory=Quantiles)
    ttft_s: Quantiles = Field(default_factory=Quantiles)


class UsageRow(Usage):
    """The usage of one group; a group that was not asked for is null."""

    tenant: str | None = None
    app: str | None = None
    user: str | None = None
    model: str | None = None
    day: date | None = None
    hour: datetime | None = None
    """Its begin, in the report's zone."""
    fairness: Fairness | None = None


class UsageReport(BaseModel):
    """A part of the groups, in the order of their names, and the sums over all of them."""

    group_by: list[Group]
    zone: str
    currency: str
    as_of: datetime | None
    """What the ledger held then is in the report, maybe more; null before the first rollup."""
    items: list[UsageRow]
    total: int
    limit: int
    offset: int
    sums: Usage
    jain_index: float | None = None
    """Of service over entitled share, between 1/n and 1: over all tenants, apps or users, if grouped
    so."""
    names: dict[str, str]
    """Of the tenants and apps in ``items``."""


class InteractionQuery(UsageFilter):
    """Which interactions to list: days are those on which they were opened."""

    state: InteractionState | None = None


class InteractionUsage(BaseModel):
    """What one interaction used; tokens, service and cost are those of its charged calls."""

    tenant: str
    app: str
    interaction: str
    user: str
    state: str
    opened_at: datetime
    ended_at: datetime
    calls: int
    input_tokens: int = 0
    """Tokens of whole prompts, as in :class:`Sums`."""
    system_tokens: int = 0
    cached_tokens: int = 0
    extend_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0
    cost: Cost = Decimal(0)
    wasted_tokens: int
    waste_cause: str | None


class InteractionPage(Page[InteractionUsage]):
    """A part of the interactions, newest first."""
