"""Settings of the queue of calls, of runs, and of the journal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fairserve.platform.base.settings import RoomSettings

Role = Literal["all", "api", "control"]


class ControlSettings(RoomSettings):
    """Bounds of control, and of the journal that it writes."""

    role: Role = Field(
        "all",
        description="all: this server decides alone. api and control: any number of servers share one "
        "order of calls over redis_url, and a PostgreSQL database. An api server serves calls; of the "
        "control servers one speaks, and the others are ready to.",
    )

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
        "that one tenant may have; more answer 429. One user of an app may have a quarter of that.",
    )
    drain_timeout_s: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="Seconds for which a stopping server waits for running calls.",
    )
    journal_max_bytes: int = Field(
        1024 * 1024 * 1024,
        ge=16 * 1024 * 1024,
        le=1 << 40,
        description="Size of the journal that is kept while the database is unavailable; at this "
        "size new calls answer 503.",
    )
