"""Settings of usage reports, exports and recorded traffic."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from fairserve.platform.base.settings import RoomSettings
from fairserve.platform.tenancy.settings import TenancySettings
from fairserve.platform.tenancy.system.settings import TuningSettings


class ReportingSettings(RoomSettings):
    """Retention, bounds and refresh intervals of reports, exports and recordings."""

    usage_retention_days: int = Field(
        730,
        ge=1,
        le=3650,
        description="Days of history in usage reports. Reports use rollups, which remain when the "
        "ledger's rows are deleted.",
    )
    usage_rollup_interval_s: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="Interval at which the ledger is rolled up for usage reports.",
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
        description="Queued and running report exports of one tenant; further requests get 429.",
    )
    export_max_bytes: int = Field(
        1 << 30,
        ge=1 << 20,
        le=1 << 44,
        description="Total size of the files of report exports in the database. When it is "
        "reached, new exports get 429 and running ones fail.",
    )
    export_max_bytes_per_tenant: int = Field(
        1 << 28,
        ge=1 << 20,
        le=1 << 44,
        description="Total size of the files of one tenant's report exports.",
    )
    export_poll_interval_s: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="Interval at which a server checks for requested report exports.",
    )
    trace_recording: bool = Field(
        True,
        description="Record token counts, times, dependencies and salted block keys of calls for "
        "`fairserve trace export`; never text. Off: the recording is deleted at the "
        "start.",
    )
    trace_max_bytes: int = Field(
        128 * 1024 * 1024,
        ge=1024 * 1024,
        le=1 << 36,
        description="Size of the recording; the oldest part is deleted.",
    )
    trace_retention_days: float = Field(
        7.0, gt=0, le=3650, description="Days after which recorded calls are deleted at the latest."
    )


class ReportSettings(Protocol):
    """The settings that usage reports and their exports read."""

    @property
    def tenancy(self) -> TenancySettings:
        """Return the settings of currency and profile learning."""
        ...

    @property
    def reporting(self) -> ReportingSettings:
        """Return retention and bounds of exports."""
        ...

    @property
    def tuning(self) -> TuningSettings:
        """The system whose fairness is reported, unless operators chose another."""
        ...
