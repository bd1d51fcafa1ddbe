"""Input of a preview: plain values, gathered by the server and passed to the child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairserve.scheduling.directory import Setting
from fairserve.scheduling.system import SystemConfig


class ServedCall(NamedTuple):
    """A ledger row of an accepted call. ``at``: UTC epoch seconds."""

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
    worker: str | None


class RefusedCall(NamedTuple):
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
class Workers:
    """The workers that serve the model now."""

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
    """Begin of the replay, before the figures' window, so that limits and caches are not empty there."""
    from_at: float
    until_at: float
    workers: Workers
    served: Sequence[ServedCall]
    refused: Sequence[RefusedCall]
    settings: Sequence[Setting]
    """Settings of the apps, tenants and users of these rows, and their quotas."""
    current: SystemConfig
    proposed: SystemConfig
    max_calls: int
    notes: Sequence[str] = ()
    """Further sentences for the reader."""
    seed: int = 0
    cut: bool = field(default=False)
    """True if there were more rows than the bound: the window is shorter than requested."""
