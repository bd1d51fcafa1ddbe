"""The way of a span out of the server: OpenTelemetry's SDK, configured by its standard variables.

``OTEL_EXPORTER_OTLP_*`` set the collector, ``OTEL_TRACES_SAMPLER`` the sampler, ``OTEL_BSP_*`` the queue
and ``OTEL_RESOURCE_ATTRIBUTES`` the resource, as the SDK documents them. A thread of the SDK encodes and
sends batches. The event loop only appends ended spans to its queue; a span that finds the queue full is
dropped and counted.

Weakness: the thread that encodes a batch shares the interpreter's lock with the event loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from fairserve.platform.base.version import product_version
from fairserve.platform.monitoring.span_counts import SpanCounts
from fairserve.platform.monitoring.tracing.call_tracer import SCHEMA_URL, CallTracer

CONTENT_MAX_CHARS = 8192
"""Characters of the prompt, and of the answer, that a span has; of a longer prompt the last messages."""
CLOSE_S = 5.0
"""Longest time in seconds for which a stopping server sends the remaining spans."""
QUEUE_SPANS = 2048
"""Size of the queue without ``OTEL_BSP_MAX_QUEUE_SIZE``, as the SDK has it."""
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Tracing:
    """The tracer of calls, and the export of its spans. Starts a thread."""

    def __init__(
        self,
        content_max_chars: int = CONTENT_MAX_CHARS,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises ValueError for a variable that asks for an exporter other than OTLP/HTTP."""
        check_exporter(environment)
        self._exporter = _CountingExporter(OTLPSpanExporter())
        size = environment.get(OTEL_BSP_MAX_QUEUE_SIZE, "")
        self._queue = _BoundedQueue(self._exporter, int(size) if size.isdecimal() else QUEUE_SPANS)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(self._queue)
        tracer = self._provider.get_tracer("fairserve", product_version(), schema_url=SCHEMA_URL)
        self.calls = CallTracer(tracer, content_max_chars)

    def counts(self) -> SpanCounts:
        """Return the numbers of spans."""
        return SpanCounts(self._exporter.exported, self._exporter.failed, self._queue.dropped)

    def close(self) -> None:
        """End the open spans, and send what is queued for ``CLOSE_S``. Blocks."""
        self.calls.close()
        # The SDK waits longer for a collector that does not answer; its exporter ends the wait.
        limit = threading.Timer(CLOSE_S, self._exporter.shutdown)
        limit.start()
        try:
            self._provider.shutdown()
        finally:
            limit.cancel()


class _CountingExporter(SpanExporter):
    """Counts the spans that pass through. Belongs to the SDK's thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._ended = threading.Lock()
        self.taken = self.exported = self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        if self._ended.acquire(blocking=False):  # the SDK warns of a second time
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class _BoundedQueue(BatchSpanProcessor):
    """The SDK's queue, which drops the new span, not the oldest one, and counts it."""

    def __init__(self, exporter: _CountingExporter, most: int) -> None:
        super().__init__(exporter)
        self._counts, self._most = exporter, most
        self._queued = self.dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        if self._queued - self._counts.taken >= self._most:
            self.dropped += 1
            return
        self._queued += 1
        super().on_end(span)


def check_exporter(environment: Mapping[str, str]) -> None:
    """Raise ValueError for a variable that asks for an exporter other than OTLP/HTTP."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    if exporter not in ("", "otlp"):
        raise ValueError(
            f"OTEL_TRACES_EXPORTER is {exporter!r}; allowed: otlp. Without tracing leave out --tracing"
        )
    for name in _PROTOCOL_VARIABLES:
        protocol = environment.get(name, "")
        if protocol not in ("", "http/protobuf"):
            raise ValueError(f"{name} is {protocol!r}; allowed: http/protobuf")


def _resource() -> Resource:
    """Return the resource of the spans; the standard variables win over the product's name."""
    own = Resource({"service.name": "fairserve", "service.version": product_version()})
    return Resource.create().merge(own).merge(OTELResourceDetector().detect())
