"""Bodies of ``/admin/throttling/preview``. Times are seconds."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from fairserve.platform.tuning.schemas import ThrottlingChoice

MAX_MINUTES = 60
DEFAULT_MINUTES = 10


class PreviewIn(ThrottlingChoice):
    """What would hold, and how much of the past is replayed under it."""

    minutes: int = Field(DEFAULT_MINUTES, ge=1, le=MAX_MINUTES)


class WindowOut(BaseModel):
    """What was replayed."""

    from_: datetime = Field(alias="from")
    until: datetime
    cut: bool
    """There were too many calls: ``from`` is later than was asked for."""
    runs: int
    calls: int
    """Planned calls of these runs; a run that is aborted makes fewer, and retries are not among them."""
    users: int
    estimated_runs: int
    """Runs that were refused and never ran, as typical runs of their apps."""
    estimated_calls: int
    estimated_by_profile: int
    """Estimated runs of apps of which no run was accepted: as their profile says."""
    came_earlier_runs: int
    """Accepted after a refusal: they arrive when they were first refused."""
    continued_runs: int
    """Refused on their way: what they would have gone on to do is estimated."""
    retries: int
    """How often a refused call is tried again, after its ``Retry-After``, as clients did."""


class CostsOut(BaseModel):
    """What passes of the workers take."""

    source: Literal["fitted", "scaled", "assumed"]
    """From the calls of the window; a known model scaled to the few there are; or that model itself."""
    calls: int
    typical_error: float | None
    """Half of the modelled times are closer than this share of the measured ones."""
    way_s: float
    """To a worker and back."""
    factor: float
    """All passes were made so many times slower, for calls to take as long as they did."""
    pass_s: float
    prompt_token_s: float
    step_s: float
    sequence_s: float


class WorkersOut(BaseModel):
    """On what it was replayed: the workers of the model that are ready now."""

    model: str
    number: int
    kv_capacity_tokens: int
    costs: CostsOut


class DistributionOut(BaseModel):
    """None where there is no value."""

    mean: float | None
    p50: float | None
    p99: float | None


class FiguresOut(BaseModel):
    """What came of one setting; only calls and runs that came in the window count."""

    refused_calls: int
    """Retries that were refused again are among them."""
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
    """A user to whom the change makes a difference."""

    tenant: str
    user: str
    refused: CountsOut
    served: CountsOut


class PairOut(BaseModel):
    """What happened, and what the replay of the present settings says."""

    measured: float | None
    simulated: float | None


class FidelityOut(BaseModel):
    """How well the replay of the present settings repeats what happened."""

    refused_calls: PairOut
    queue_delay_p50_s: PairOut
    queue_delay_p99_s: PairOut
    ttft_p99_s: PairOut
    trust: Literal["good", "fair", "poor"]


class PreviewOut(BaseModel):
    """The last minutes, replayed under the present settings and under those proposed."""

    window: WindowOut
    workers: WorkersOut
    left_out: list[str]
    current: FiguresOut
    proposed: FiguresOut
    users: list[AffectedUser]
    """Those for whom it changes most, at most 20."""
    users_changed: int
    """All for whom it changes something."""
    fidelity: FidelityOut
    sentences: list[str]
