"""Settings of report exports."""

from __future__ import annotations

from pydantic import Field

from fairserve.platform.server.settings_webhooks import WebhookSettings


class ExportSettings(WebhookSettings):
    """A part of :class:`fairserve.platform.server.settings.Settings`."""

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
