"""Settings of usage reports, exports and recorded traffic."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from fairserve.platform.base.settings import RoomSettings
from fairserve.platform.tenancy.settings import TenancySettings
from fairserve.platform.tenancy.system.settings import TuningSettings


class ReportingSettings(RoomSettings):
    """Retention of reports, and the recording of traffic."""

    usage_retention_days: int = Field(
        730,
        ge=1,
        le=3650,
        description="Days of history in usage reports. Reports use rollups, which remain when the "
        "ledger's rows are deleted.",
    )
    trace_recording: bool = Field(
        True,
        description="Record token counts, times, dependencies and salted block keys of calls for "
        "`fairserve trace export`; never text. Off: the recording is deleted at the "
        "start.",
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
