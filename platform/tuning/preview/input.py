"""What a preview is made of: plain values, gathered by the server and handed to the child process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fairserve.scheduling.directory import Setting
from fairserve.scheduling.system import SystemConfig


class ServedCall(NamedTuple):
    """A ledger row of a call that was accepted. ``at``: UTC epoch seconds."""

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
    """A ledger row of a call that was refused."""

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
    """Those that serve the model now."""

    model: str
    number: int
    kv_capacity_tokens: int
    """Of the smallest."""
    max_running: int
    max_pass_tokens: int


@dataclass(frozen=True, slots=True)
class PreviewJob:
    """What is to be replayed, and how. Times are UTC epoch seconds."""

    recording: Path
    """The folder."""
    lead_at: float
    """The replay begins here, so that limits and caches are not empty where figures begin."""
    from_at: float
    until_at: float
    workers: Workers
    served: Sequence[ServedCall]
    refused: Sequence[RefusedCall]
    settings: Sequence[Setting]
    """Of the apps, tenants and users of these rows, and their contracts."""
    current: SystemConfig
    proposed: SystemConfig
    max_calls: int
    notes: Sequence[str] = ()
    """What else the reader should know."""
    seed: int = 0
    cut: bool = field(default=False)
    """There were more rows than are looked at: the window is shorter than was asked for."""
