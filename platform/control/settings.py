"""Settings of the queue of calls, of runs, and of the journal."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from fairserve.platform.base.settings import RoomSettings


class ControlSettings(RoomSettings):
    """Bounds of control, and of the journal that it writes."""

    max_queue_wait_s: float = Field(
        360.0, gt=0, le=86_400, description="Seconds after which a call in the queue answers 503."
    )
    max_queued_calls: int = Field(
        10_000,
        ge=1,
        le=10_000_000,
        description="Calls that may wait for a model; of more, those of the tenant, app and user with "
        "the most answer 503.",
    )
    max_tenant_share: float = Field(
        1 / 4,
        gt=0,
        le=1,
        description="Share of the calls that may wait for a model, and of the open interactions, "
        "that one tenant may have; more answer 429.",
    )
    max_user_share: float = Field(
        1 / 16,
        gt=0,
        le=1,
        description="Share of these calls and interactions that one user of an app may have; more "
        "answer 429.",
    )
    user_openings_per_minute: int = Field(
        600,
        ge=1,
        le=1_000_000,
        description="Interactions that one user may open without a call, or as programs, within a "
        "minute; more answer 429.",
    )
    lease_s: float = Field(
        60.0,
        gt=0,
        le=86_400,
        description="Seconds without progress after which a granted call is ended and accounted.",
    )
    drain_timeout_s: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="Seconds for which a stopping server waits for running calls.",
    )
    infer_parents: bool = Field(
        True,
        description="Infer the parents of calls that name none from their messages and from time. "
        "Off: such a call is a root.",
    )
    interaction_reopen_grace_s: float = Field(
        600.0,
        ge=0,
        le=7 * 86_400,
        description="Seconds after an interaction's idle time-out within which a further call "
        "reopens it; also after a call without an interaction's id, within which another call may "
        "continue its conversation.",
    )
    journal_segment_bytes: int = Field(
        16 * 1024 * 1024,
        ge=4096,
        le=1 << 32,
        description="Size at which the journal begins a new file.",
    )
    journal_max_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=4096,
        le=1 << 40,
        description="Size of the journal that is kept while the database is unavailable; at this "
        "size new calls answer 503.",
    )

    @model_validator(mode="after")
    def _check_journal(self) -> Self:
        if self.journal_segment_bytes > self.journal_max_bytes:
            raise ValueError("journal_segment_bytes must not be above journal_max_bytes")
        return self
