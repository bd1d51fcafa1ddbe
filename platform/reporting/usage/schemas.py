"""Queries and responses of the usage reports."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    computed_field,
    model_validator,
)

from fairserve.interactions.call import ServiceTier
from fairserve.platform.db.schemas import FieldError, ModelName, ObjectId, Page, Paging, UserId

Group = Literal["tenant", "app", "user", "model", "service_tier", "day", "hour"]
GROUPS: tuple[Group, ...] = get_args(Group)

Sort = Literal[
    "name",
    "calls",
    "refused",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "tokens",
    "wasted_tokens",
    "cost",
]

Format = Literal["json", "csv", "parquet", "html"]

InteractionState = Literal["complete", "aborted", "cancelled", "expired"]

Cost = Annotated[Decimal, PlainSerializer(float, return_type=float, when_used="json")]


def _split(value: Any) -> Any:
    """Split values at commas: ``group_by=app,day`` equals ``group_by=app&group_by=day``."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return [part for item in value for part in str(item).split(",") if part]
    return value


class UsageFilter(Paging):
    """Filters of a report. Days are in ``zone`` and include both ends."""

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
    """Groups of a report. ``tenant`` is for admin keys; ``zone`` is an IANA name."""

    model: ModelName | None = None
    group_by: Annotated[list[Group], BeforeValidator(_split), Field(max_length=len(GROUPS))] = (
        Field(default_factory=list)
    )

    sort: Sort = "name"
    """Order of the groups: by name and time, or by a sum, the largest first. ``tokens`` are input and
    output tokens."""

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if len(set(self.group_by)) != len(self.group_by):
            raise FieldError("group_by", "group_by contains a group twice")
        return self


class UsageRequest(UsageQuery):
    """A report over HTTP."""

    format: Format = "json"


class Quantiles(BaseModel):
    """Quantiles of a duration, in seconds; null without measurements."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    count: int = 0


class InteractionCounts(BaseModel):
    """Ended interactions by outcome."""

    complete: int = 0
    aborted: int = 0
    cancelled: int = 0
    expired: int = 0


class WastedByCause(BaseModel):
    """Tokens of interactions that did not complete, by cause."""

    throttled: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0


class Fairness(BaseModel):
    """A group's share of the service, and its entitled share by weights and levels.

    Service is measured in the unit of the system in force
    (:mod:`fairserve.platform.reporting.usage.fairness`). Both shares are relative to the groups with
    service, of the same day or hour in a report by days or hours.
    """

    service_share: float
    entitled_share: float


class Sums(BaseModel):
    """Sums over charged calls; uncharged calls are only counted, in a separate field."""

    calls: int = 0
    completed: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0
    uncharged_calls: int = 0
    input_tokens: int = 0
    """Tokens of prompts, including system tokens and cached tokens."""
    system_tokens: int = 0
    """Prompt tokens of leading system messages."""
    cached_tokens: int = 0
    """Prompt tokens served from a worker's prefix cache."""
    extend_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of the output tokens that workers report as reasoning."""
    service: float = 0.0
    """Input tokens, including cached ones, plus twice the output tokens."""
    wasted_tokens: int = 0
    """Input and output tokens of calls that did not complete."""


class Usage(Sums):
    """Usage of a group. Interactions and rejections are null in groups by model or service tier."""

    cost: Cost = Decimal(0)
    """Cost in the currency of the report."""
    unpriced_calls: int = 0
    """Calls with tokens whose model had no price."""
    interactions: InteractionCounts | None = None
    wasted_by_cause: WastedByCause | None = None
    refusals: dict[str, int] | None = None
    """Rejections by reason."""
    queue_delay_s: Quantiles = Field(default_factory=Quantiles)
    ttft_s: Quantiles = Field(default_factory=Quantiles)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def cost_per_answer(self) -> Cost | None:
        """Return the cost for each complete interaction; null where none is complete."""
        answers = 0 if self.interactions is None else self.interactions.complete
        return round(self.cost / answers, 9) if answers else None


class UsageRow(Usage):
    """Usage of one group; keys that are not groups of the report are null."""

    tenant: str | None = None
    app: str | None = None
    user: str | None = None
    model: str | None = None
    service_tier: ServiceTier | None = None
    day: date | None = None
    hour: datetime | None = None
    """Start of the hour, in the report's zone."""
    fairness: Fairness | None = None


class UsageReport(BaseModel):
    """A page of the groups, and the sums over all groups."""

    group_by: list[Group]
    zone: str
    currency: str
    as_of: datetime | None
    """Time up to which the report covers the ledger; null before the first rollup."""
    items: list[UsageRow]
    total: int
    limit: int
    offset: int
    sums: Usage
    jain_index: float | None = None
    """Jain's index of service over entitled share, between 1/n and 1, in a report by tenants, apps or
    users."""
    names: dict[str, str]
    """Names of the tenants and apps in ``items``."""


class InteractionUsageQuery(UsageFilter):
    """Filters of a listing of interactions. Days are those of their opening."""

    state: InteractionState | None = None


class InteractionUsage(BaseModel):
    """Usage of one interaction: tokens, service and cost of its charged calls."""

    tenant: str
    app: str
    interaction: str
    user: str
    state: str
    opened_at: datetime
    ended_at: datetime
    calls: int
    flex_calls: int = 0
    """Charged calls of the tier ``flex``."""
    priority_calls: int = 0
    input_tokens: int = 0
    """Tokens of prompts, as in :class:`Sums`."""
    system_tokens: int = 0
    cached_tokens: int = 0
    extend_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    service: float = 0.0
    cost: Cost = Decimal(0)
    wasted_tokens: int
    waste_cause: str | None


class InteractionPage(Page[InteractionUsage]):
    """A page of interactions, newest first."""
