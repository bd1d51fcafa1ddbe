"""Settings of usage reports, exports and recorded traffic."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from fairserve.platform.base.settings import RoomSettings
from fairserve.platform.tenancy.settings import TenancySettings
from fairserve.platform.tuning.settings import TuningSettings


class ReportingSettings(RoomSettings):
    """Retention and bounds of what is reported, and how fresh it is."""

    usage_retention_days: int = Field(
        730,
        ge=1,
        le=3650,
        description="Days that usage reports reach back. They are made of rollups, which stay when "
        "the ledger's rows are gone.",
    )
    usage_rollup_interval_s: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="How often the ledger is rolled up for usage reports, which are that fresh.",
    )
    export_retention_hours: float = Field(
        72.0,
        gt=0,
        le=24 * 365,
        description="Hours for which the file of a report export can be downloaded.",
    )
    export_max_unfinished: int = Field(
        20,
        ge=1,
        le=10_000,
        description="Report exports of one tenant that wait or are being made; more answer 429.",
    )
    export_max_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        le=1 << 44,
        description="Files of report exports kept in the database, in all. When it is reached new "
        "exports answer 429, and those being made fail.",
    )
    export_max_bytes_per_tenant: int = Field(
        1 << 28,
        ge=1 << 20,
        le=1 << 44,
        description="The same for one tenant.",
    )
    export_poll_interval_s: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="How often a server looks for report exports to make.",
    )
    trace_recording: bool = Field(
        True,
        description="Record token counts, times, dependencies and salted block keys of calls for "
        "`fairserve trace export`; never text. Off: what was recorded is deleted at the start.",
    )
    trace_max_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 36,
        description="Size of the recording; what is oldest is deleted.",
    )
    trace_retention_days: float = Field(
        7.0, gt=0, le=3650, description="Days after which recorded calls are deleted at the latest."
    )


class ReportSettings(Protocol):
    """The settings that usage reports and their exports read."""

    @property
    def tenancy(self) -> TenancySettings:
        """Currency, and how profiles are learned."""
        ...

    @property
    def reporting(self) -> ReportingSettings:
        """Retention and bounds of exports."""
        ...

    @property
    def tuning(self) -> TuningSettings:
        """The system whose fairness is reported."""
        ...
