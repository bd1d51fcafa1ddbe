"""Requests and responses of ``/admin/throttling/preview``. Times are seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from fairserve.platform.tuning.schemas import ThrottlingChoice

MAX_MINUTES = 60
DEFAULT_MINUTES = 10


class PreviewIn(ThrottlingChoice):
    """Proposed settings, and the minutes to replay with them."""

    minutes: int = Field(DEFAULT_MINUTES, ge=1, le=MAX_MINUTES)


class WindowOut(BaseModel):
    """The replayed window."""

    from_: datetime = Field(alias="from")
    until: datetime
    cut: bool
    """True if ``from`` is later than requested because there were too many calls."""
    runs: int
    calls: int
    """Planned calls of these runs; an aborted run has fewer, and retries do not count."""
    users: int
    estimated_runs: int
    """Rejected runs, also those rejected while in progress, replayed as accepted runs of their apps."""
    estimated_calls: int
    came_earlier_runs: int
    """Runs accepted after a rejection, which arrive at the time of their first rejection."""
    retries: int
    """Retries of a rejected call, each after its ``Retry-After``; their number is the clients'."""


class CostsOut(BaseModel):
    """Durations of the workers' passes."""

    source: Literal["scaled", "assumed"]
    """Source of the durations: a named model scaled to the window's calls, or the model as it is."""
    calls: int
    way_s: float
    """Round-trip time to a worker, in seconds."""
    factor: float
    """Factor by which all passes were slowed down to match the measured durations of calls."""
    pass_s: float
    prompt_token_s: float
    step_s: float
    sequence_s: float


class WorkersOut(BaseModel):
    """The replayed workers: the ready workers of the model."""

    model: str
    number: int
    kv_capacity_tokens: int
    costs: CostsOut


class DistributionOut(BaseModel):
    """A distribution; None without values."""

    mean: float | None
    p50: float | None
    p99: float | None


class FiguresOut(BaseModel):
    """Results with one setting, over calls and runs that arrived in the window."""

    refused_calls: int
    """Rejected calls, including rejected retries."""
    refused_by_reason: dict[str, int]
    refused_mid_run: int
    queue_delay_s: DistributionOut
    ttft_s: DistributionOut
    interaction_latency_s: DistributionOut
    jain_index: float
    completed_interactions: int
    aborted_interactions: int
    wasted_tokens: int
    prefix_hit_rate: float
    throughput_tokens_per_s: float
    busy_share: float


class CountsOut(BaseModel):
    """The same count under both settings."""

    current: int
    proposed: int


class AffectedUser(BaseModel):
    """A user affected by the change."""

    tenant: str
    user: str
    refused: CountsOut
    served: CountsOut


class PairOut(BaseModel):
    """A measured value, and the value in the replay of the current settings."""

    measured: float | None
    simulated: float | None


class FidelityOut(BaseModel):
    """Accuracy of the replay of the current settings compared with measurements."""

    refused_calls: PairOut
    queue_delay_p50_s: PairOut
    queue_delay_p99_s: PairOut
    ttft_p99_s: PairOut
    trust: Literal["good", "fair", "poor"]


class PreviewOut(BaseModel):
    """Results of the last minutes, replayed with the current and the proposed settings."""

    window: WindowOut
    workers: WorkersOut
    left_out: list[str]
    current: FiguresOut
    proposed: FiguresOut
    users: list[AffectedUser]
    """The most affected users, at most 20."""
    users_changed: int
    """Number of affected users."""
    fidelity: FidelityOut
    sentences: list[str]
