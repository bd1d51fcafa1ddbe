"""Query and answer of the usage reports."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from fairserve.platform.db.schemas import ObjectId, Paging, UserId

Group = Literal["tenant", "app", "user", "day"]
GROUPS: tuple[Group, ...] = ("tenant", "app", "user", "day")


def _split(value: Any) -> Any:
    """``group_by=app,day`` and ``group_by=app&group_by=day`` mean the same."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        return [part for item in value for part in str(item).split(",") if part]
    return value


class UsageQuery(Paging):
    """What to sum. Days are UTC, both ends included; ``tenant`` is for admin keys."""

    tenant: ObjectId | None = None
    app: ObjectId | None = None
    user: UserId | None = None
    first_day: date | None = Field(None, alias="from")
    last_day: date | None = Field(None, alias="to")
    group_by: Annotated[list[Group], BeforeValidator(_split), Field(max_length=4)] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.first_day and self.last_day and self.first_day > self.last_day:
            raise ValueError("from is after to")
        if len(set(self.group_by)) != len(self.group_by):
            raise ValueError("group_by names a group twice")
        return self


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
    system_tokens: int = 0
    cached_tokens: int = 0
    extend_tokens: int = 0
    output_tokens: int = 0
    service: float = 0.0
    """Input and system tokens plus twice the output tokens, cached ones included."""
    wasted_tokens: int = 0
    """Input, system and output tokens of calls that did not complete."""


class UsageRow(Sums):
    """The sums of one group; a group that was not asked for is null."""

    tenant: str | None = None
    app: str | None = None
    user: str | None = None
    day: date | None = None


class UsageReport(BaseModel):
    """A part of the groups, in the order of their names, and the sums over all of them."""

    group_by: list[Group]
    items: list[UsageRow]
    total: int
    limit: int
    offset: int
    sums: Sums
