"""Input of a preview: plain values that the server passes to the child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairserve.scheduling.directory import Setting
from fairserve.scheduling.system import SystemConfig


class ServedCall(NamedTuple):
    """A ledger row of an accepted call. ``at`` is UTC epoch seconds."""

    call_id: str
    tenant: str
    app: str
    user: str
    model: str
    run: str
    stage: int
    outcome: str
    at: float
    input_tokens: int
    system_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float | None
    ttft_s: float | None
    duration_s: float | None


class RejectedCall(NamedTuple):
    """A ledger row of a rejected call."""

    tenant: str
    app: str
    user: str
    model: str
    run: str
    at: float
    reason: str
    mid_run: bool


@dataclass(frozen=True, slots=True)
class PreviewWorkers:
    """The current workers of the model."""

    model: str
    number: int
    kv_capacity_tokens: int
    """KV capacity of the smallest worker."""
    max_running: int
    max_pass_tokens: int


@dataclass(frozen=True, slots=True)
class PreviewJob:
    """A replay to run. Times are UTC epoch seconds."""

    recording: Path
    """Folder of the recording."""
    lead_at: float
    """Start of the replay, before the window, so that limits and caches are not empty in it."""
    from_at: float
    until_at: float
    workers: PreviewWorkers
    served: Sequence[ServedCall]
    refused: Sequence[RejectedCall]
    settings: Sequence[Setting]
    """Settings and quotas of the tenants, apps and users of these rows."""
    current: SystemConfig
    proposed: SystemConfig
    max_calls: int
    notes: Sequence[str] = ()
    """Further omissions, for the report."""
    seed: int = 0
    cut: bool = field(default=False)
    """True if the window is shorter than requested because of the bound on rows."""
