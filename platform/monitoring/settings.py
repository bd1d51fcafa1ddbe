"""Settings of traces. The standard ``OTEL_*`` variables set collector, sampler and resource."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from fairserve.platform.base.settings import RoomSettings


class MonitoringSettings(RoomSettings):
    """Traces of interactions for an OpenTelemetry collector."""

    tracing: bool = Field(
        False,
        description="Export interactions and calls as OpenTelemetry traces by OTLP/HTTP; the standard "
        "OTEL_* variables set collector, sampler and resource. Needs the extra otel.",
    )
    trace_content: bool = Field(
        False, description="Add prompts and answers to the spans of sampled calls."
    )
    trace_content_max_chars: int = Field(
        8192,
        ge=100,
        le=1_000_000,
        description="Characters of the prompt, and of the answer, that a span may have; of a longer "
        "prompt the last messages.",
    )

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.trace_content and not self.tracing:
            raise ValueError("trace_content needs tracing")
        return self
