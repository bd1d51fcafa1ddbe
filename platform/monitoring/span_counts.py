"""Numbers of spans, for metrics; imports nothing of OpenTelemetry, which may be missing."""

from __future__ import annotations

from typing import NamedTuple


class SpanCounts(NamedTuple):
    """Sampled spans since the start."""

    exported: int = 0
    failed: int = 0
    """Spans that the collector did not accept."""
    dropped: int = 0
    """Spans that found the queue full."""
