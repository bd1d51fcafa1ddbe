"""Bodies of ``/admin/throttling``."""

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
    """Say what is allowed: the union itself would name only its first type."""
    if isinstance(value, str) and len(value) > MAX_VALUE_CHARS:
        raise ValueError(f"the text has {len(value)} characters; allowed: {MAX_VALUE_CHARS}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError('the number is not finite; infinity is written as "inf"')
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError("allowed: a number, a text, true, false or null")
    return value


Scalar = Annotated[
    bool | int | float | Annotated[str, StringConstraints(max_length=MAX_VALUE_CHARS)] | None,
    BeforeValidator(_check_scalar),
]

InteractionId = Annotated[
    str,
    StringConstraints(min_length=1, max_length=WIDE_ID_CHARS, pattern=NO_CONTROL_CHARACTERS),
]
"""A run's id as its client writes it."""


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
    """Which refusals to list. ``tenant`` is for admin keys; ``until`` itself is not included."""

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
    """A refusal, and what it was decided on. What is null it does not have, or nobody wrote it then."""

    call_id: str
    at: datetime
    tenant: str
    app: str
    user: str
    interaction_id: str
    model: str | None
    """The name that was asked for; ``served_model``: what that led to."""
    served_model: str | None
    agent: str | None
    reason: str
    scope: str | None
    limit: int | None
    count: int | None
    window_s: float | None
    retry_after_s: float | None
    mid_run: bool
    """Whether its run had been served a call."""
    system: str | None
    overloaded: bool | None
    """Whether the call's model was, as all of the load is that model's."""
    demand_tokens: int | None
    """What its running and queued calls held or asked for, the refused one excluded."""
    capacity_tokens: int | None
    """KV capacity of its workers that took calls."""
    high_watermark: float | None
    """Demand over capacity at which an overload begins."""
    low_watermark: float | None
    """Demand over capacity at which it ends."""
    queued_calls: int | None
    call_tokens: int | None
    """The call's prompt and longest output over all samples."""
    run_calls: int | None
    """Accepted calls of its run so far."""
    run_tokens: int | None
    """Tokens of those that had ended."""
    expected_calls: float | None
    """Of a run, by the app's profile, as ``expected_tokens``."""
    expected_tokens: float | None
    immunity_factor: float | None
    """Multiple of the app's longest usual run at which immunity ends; null where it never does."""
    under_way: bool | None
    immune: bool | None
    budget_limit: Cost | None
    """The hard or the soft end, in the deployment's currency; set for refusals for money."""
    budget_spent: Cost | None
    budget_held: Cost | None
    """For calls under way, at most."""
    call_cost: Cost | None
    """Of the refused call, at most."""


class RefusalOut(EventOut):
    """One refusal, in words, too."""

    throttling_version: int
    """The newest version of the settings that was stored by then; 0: the server's settings."""
    currency: str
    explanation: list[str]
