"""Settings of traces. The standard ``OTEL_*`` variables set collector, sampler and resource."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fairserve.platform.base.settings import RoomSettings, word_of_switch

Traces = Literal["off", "calls", "content"]


class MonitoringSettings(RoomSettings):
    """Traces of interactions for an OpenTelemetry collector."""

    tracing: Annotated[Traces, BeforeValidator(word_of_switch)] = Field(
        "off",
        description="Export interactions and calls as OpenTelemetry traces by OTLP/HTTP: off, calls, or "
        "content, with the prompts and answers of sampled calls. The standard OTEL_* variables set "
        "collector, sampler and resource. Needs the extra otel.",
    )
