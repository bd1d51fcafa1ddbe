"""Loads the tracer of calls, whose packages are an extra."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fairserve.platform.monitoring.settings import MonitoringSettings

if TYPE_CHECKING:
    from fairserve.platform.monitoring.tracing.exporting import Tracing


def tracing_class(settings: MonitoringSettings) -> type[Tracing] | None:
    """Return the class of the tracer; None if calls are not traced.

    Raises ValueError without the extra, or for variables that ask for another exporter.
    """
    if settings.tracing == "off":
        return None
    try:
        from fairserve.platform.monitoring.tracing.exporting import Tracing, check_exporter
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise ValueError("tracing needs OpenTelemetry: pip install 'fairserve[otel]'") from error
    check_exporter(os.environ)
    return Tracing
