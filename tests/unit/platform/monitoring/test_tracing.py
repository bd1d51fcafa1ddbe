"""Bounds of the tracer: open runs, the queue of spans, and the time of a stop."""

from otlp_collector import OtlpCollector
from processes import free_port
from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState
from fairserve.platform.monitoring.tracing import exporting
from fairserve.platform.monitoring.tracing.exporting import Tracing


def reject(tracing, times):
    for number in range(times):
        call = CallState(make_call(f"c{number}"), "row", "", 0.0, 0.0)
        tracing.calls.call_rejected(call, "rpm_user_limit", 1.0)


def test_spans_beyond_the_queue_are_dropped_and_counted(monkeypatch):
    collector = OtlpCollector()
    sizes = {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    for name, value in (collector.environment | sizes).items():
        monkeypatch.setenv(name, value)
    tracing = Tracing(0)
    collector.answering.clear()
    reject(tracing, 10)
    collector.answering.set()
    tracing.close()
    collector.close()
    counts = tracing.counts()
    assert counts.exported == len(collector.spans) == 10 - counts.dropped
    assert 4 <= counts.dropped <= 6  # the exporter had up to one batch


def test_a_stop_does_not_wait_for_a_collector_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    monkeypatch.setattr(exporting, "CLOSE_S", 0.1)
    tracing = Tracing(0)
    reject(tracing, 3)
    tracing.close()
    assert tracing.counts() == (0, 3, 0)
