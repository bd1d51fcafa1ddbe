"""Answers of the tools: bounded lists of plain fields, each with its unit."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, Field

MAX_ROWS = 50
"""Most rows of a list."""


class WorkerState(BaseModel):
    """A worker."""

    worker_id: str
    model: str = ""
    state: Annotated[str, Field(description="joining, ready, draining or open circuit")]
    reason: Annotated[str | None, Field(description="why it is not ready")] = None
    calls: int = 0
    demand_tokens: int = 0
    kv_capacity_tokens: int = 0


class ModelState(BaseModel):
    """A model with its queue and load."""

    model: str
    ready: Annotated[bool, Field(description="false if no worker serves it")]
    workers_up: int = 0
    overloaded: bool = False
    queued_calls: int = 0
    held_calls: Annotated[int, Field(description="queued calls that wait for KV memory")] = 0
    expected_wait_s: Annotated[
        float, Field(description="of a call that is queued now; 0 while work does not wait")
    ] = 0.0
    demand_tokens: Annotated[int, Field(description="KV tokens of queued and running calls")] = 0
    capacity_tokens: int = 0
    high_watermark: Annotated[
        float, Field(description="demand / capacity at which overload begins")
    ] = 0.0


class LastMinute(BaseModel):
    """Calls of the last minute."""

    accepted: int
    rejected_by_reason: dict[str, int]
    ended_by_outcome: dict[str, int]
    queue_p99_s: Annotated[float | None, Field(description="largest of the minute; null: none")]


class OverviewAnswer(BaseModel):
    """State of the server now."""

    system: Annotated[str, Field(description="scheduling and throttling system in force")]
    overloaded: bool
    draining: bool
    queued_calls: int
    running_calls: int
    live_interactions: int
    demand_tokens: int
    capacity_tokens: int
    models: list[ModelState]
    workers: Annotated[list[WorkerState], Field(description=f"the first {MAX_ROWS}")]
    workers_total: int
    last_minute: LastMinute


class FloodingClientAnswer(BaseModel):
    """A client: a user of an app of a tenant."""

    tenant: str
    tenant_name: str = ""
    app: str
    app_name: str = ""
    user: Annotated[str, Field(description="id as the app sends it")]
    signs: Annotated[list[str], Field(description="why it is listed")]
    service_share: float | None
    entitled_share: float | None
    queued_calls: int
    running_calls: int
    rejected_calls: Annotated[int, Field(description="of the last 30 minutes")]
    blocked: bool


class Flooding(BaseModel):
    """Clients that take far more than their share of five minutes, or most of the queue."""

    clients: Annotated[
        list[FloodingClientAnswer], Field(description="largest share first; empty: none")
    ]
    queued_calls: int


class RejectionAnswer(BaseModel):
    """A rejected call, and why it was rejected."""

    call_id: str
    at: datetime
    tenant: str
    app: str
    user: str
    interaction_id: str
    model: str | None
    reason: Annotated[str, Field(description="code of the limit")]
    explanation: Annotated[list[str], Field(description="limit, load, run and retry in sentences")]
    retry_after_s: float | None
    mid_run: Annotated[bool, Field(description="true if an earlier call of its run was served")]
    currency: str


class UsageSums(BaseModel):
    """Sums over the charged calls of a group; what does not apply is null."""

    calls: int
    completed: int
    rejected: int
    failed: int
    input_tokens: Annotated[int, Field(description="cached ones included")]
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: Annotated[int, Field(description="part of the output tokens")]
    wasted_tokens: Annotated[int, Field(description="of calls that did not complete")]
    service: Annotated[float, Field(description="input tokens and twice the output tokens")]
    cost: float
    cost_per_answer: Annotated[float | None, Field(description="cost for each complete run")]


class UsageRowAnswer(UsageSums):
    """Usage of one group."""

    tenant: str | None = None
    app: str | None = None
    user: str | None = None
    model: str | None = None
    service_tier: str | None = None
    day: str | None = None


class UsageAnswer(BaseModel):
    """Usage of a period by groups."""

    as_of: Annotated[datetime | None, Field(description="time up to which calls are counted")]
    currency: str
    zone: str
    rows: list[UsageRowAnswer]
    rows_total: int
    sums: Annotated[UsageSums, Field(description="of all groups")]
    names: dict[str, str]
