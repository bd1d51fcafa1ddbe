"""Bodies of ``/admin/throttling``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from fairserve.platform.db.schemas import ObjectId, Paging, Strict, UserId

MAX_PARAMETERS = 100

Scalar = bool | int | float | Annotated[str, StringConstraints(max_length=100)] | None


class ThrottlingChoice(Strict):
    """A system and its parameters. Those that are left out have their defaults."""

    system: ObjectId
    parameters: dict[Annotated[str, StringConstraints(min_length=1, max_length=100)], Scalar] = (
        Field(default_factory=dict, max_length=MAX_PARAMETERS)
    )


class ThrottlingPut(ThrottlingChoice):
    """What shall hold. Parameters that are left out return to their defaults."""

    expected_version: int | None = Field(None, ge=0)
    """If given, the change is refused with 409 unless this is the version in force."""


class ParameterOut(BaseModel):
    """One parameter; ``"inf"`` stands for infinity."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    value: Any
    default: Any
    unit: str
    description: str


class ThrottlingOut(BaseModel):
    """What holds. Version 0 is the server's settings."""

    version: int
    system: str
    throttle: str
    feeder: str
    router: str
    local: str
    parameters: list[ParameterOut]
    systems: list[str]
    """Names that may be chosen; ``rpm-20`` stands for any number."""
    author: str | None
    created_at: datetime | None


class ThrottlingChanged(ThrottlingOut):
    """The answer to a change."""

    after_worker_restart: list[str]
    """Changed parameters of the workers' own scheduler: a running worker keeps its old ones."""


class VersionOut(BaseModel):
    """One version of the settings."""

    model_config = ConfigDict(from_attributes=True)

    version: int
    system: str
    parameters: dict[str, Any]
    author: str
    created_at: datetime


class EventQuery(Paging):
    """Which refusals to list."""

    tenant: ObjectId | None = None
    app: ObjectId | None = None
    user: UserId | None = None
    reason: ObjectId | None = None
    since: AwareDatetime | None = None


class EventOut(BaseModel):
    """A refusal."""

    call_id: str
    at: datetime
    tenant: str
    app: str
    user: str
    interaction_id: str
    reason: str
    scope: str | None
    limit: int | None
    count: int | None
    window_s: float | None
    retry_after_s: float | None
    mid_run: bool
