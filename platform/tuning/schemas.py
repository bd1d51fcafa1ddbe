"""Requests and responses of ``/admin/throttling``."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from fairserve.platform.db.ledger import WIDE_ID_CHARS
from fairserve.platform.db.schemas import (
    NO_CONTROL_CHARACTERS,
    ObjectId,
    Paging,
    Strict,
    UserId,
)
from fairserve.platform.reporting.usage.schemas import Cost
from fairserve.throttling.base import Scope

MAX_PARAMETERS = 100

MAX_VALUE_CHARS = 100


def _check_scalar(value: object) -> object:
    """Check a value; the error names all allowed types, where the union's would name the first."""
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        raise ValueError(f"the text has {len(value)} characters; the limit is {MAX_VALUE_CHARS}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError('the number is not finite; write infinity as "inf"')
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError("must be a number, a text, true, false or null")
    return value


Scalar = Annotated[
    bool | int | float | Annotated[str, StringConstraints(max_length=MAX_VALUE_CHARS)] | None,
    BeforeValidator(_check_scalar),
]

InteractionId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=WIDE_ID_CHARS, pattern=NO_CONTROL_CHARACTERS),
]
"""The client's id of a run."""


class ThrottlingChoice(Strict):
    """A system and its parameters; omitted parameters have their defaults."""

    system: ObjectId
    parameters: dict[Annotated[str, StringConstraints(min_length=1, max_length=100)], Scalar] = (
        Field(default_factory=dict, max_length=MAX_PARAMETERS)
    )


class ThrottlingPut(ThrottlingChoice):
    """The settings to apply; omitted parameters are reset to their defaults."""

    expected_version: int | None = Field(None, ge=0)
    """Version that must be in force; otherwise the change is rejected with 409."""


class ParameterOut(BaseModel):
    """One parameter; ``"inf"`` stands for infinity."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    value: Any
    default: Any
    unit: str
    description: str


class ThrottlingOut(BaseModel):
    """The settings in force; version 0 is the server's settings."""

    version: int
    system: str
    throttle: str
    feeder: str
    router: str
    local: str
    parameters: list[ParameterOut]
    systems: list[str]
    """Systems to choose from, the present one included; ``rpm-20`` represents any number."""
    author: str | None
    created_at: datetime | None


class ThrottlingChanged(ThrottlingOut):
    """Response to a change."""

    after_worker_restart: list[str]
    """Changed parameters of the workers' local scheduler, which apply to restarted workers only."""


class VersionOut(BaseModel):
    """One version of the settings."""

    model_config = ConfigDict(from_attributes=True)

    version: int
    system: str
    parameters: dict[str, Any]
    author: str
    created_at: datetime


class EventQuery(Paging):
    """Filters of a listing of rejections. ``tenant`` is for admin keys; ``until`` is exclusive."""

    tenant: ObjectId | None = None
    app: ObjectId | None = None
    user: UserId | None = None
    interaction_id: InteractionId | None = None
    reason: ObjectId | None = None
    scope: Scope | None = None
    mid_run: bool | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None


class EventOut(BaseModel):
    """A rejection with the state that it was decided on. Null: not applicable or not recorded."""

    call_id: str
    at: datetime
    tenant: str
    app: str
    user: str
    interaction_id: str
    model: str | None
    """Requested name, which resolved to ``served_model``."""
    served_model: str | None
    agent: str | None
    reason: str
    scope: str | None
    limit: int | None
    count: int | None
    window_s: float | None
    retry_after_s: float | None
    mid_run: bool
    """True if an earlier call of its run had been served."""
    system: str | None
    overloaded: bool | None
    """True if the call's model was overloaded; all load figures are this model's."""
    demand_tokens: int | None
    """KV tokens of the model's running and queued calls, without the rejected one."""
    capacity_tokens: int | None
    """KV capacity of the model's workers that accepted calls, in tokens."""
    high_watermark: float | None
    """Ratio of demand to capacity at which an overload begins."""
    low_watermark: float | None
    """Ratio of demand to capacity at which an overload ends."""
    queued_calls: int | None
    call_tokens: int | None
    """Tokens of the call's prompt and maximum output over all samples."""
    run_calls: int | None
    """Accepted calls of its run."""
    run_tokens: int | None
    """Tokens of the ended calls of its run."""
    expected_calls: float | None
    """Calls of the app's longest usual run; ``expected_tokens`` likewise."""
    expected_tokens: float | None
    immunity_factor: float | None
    """Multiple of the app's longest usual run at which immunity ends; null if it never ends."""
    under_way: bool | None
    immune: bool | None
    budget_limit: Cost | None
    """Hard or soft budget in the deployment's currency; null in other rejections."""
    budget_spent: Cost | None
    budget_held: Cost | None
    """Maximum cost of running calls, which is reserved."""
    call_cost: Cost | None
    """Maximum cost of the rejected call."""


class RejectionOut(EventOut):
    """A rejection with its explanation."""

    throttling_version: int
    """Version of the settings in force at the time; 0 for the server's settings."""
    currency: str
    explanation: list[str]
