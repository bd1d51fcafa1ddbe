"""Bounds of the tracer: open runs, the queue of spans, and the time of a stop."""

from opentelemetry.trace import INVALID_SPAN
from otlp_collector import OtlpCollector
from processes import free_port
from virtual_cluster import make_call

from fairserve.platform.control.call_state import CallState
from fairserve.platform.monitoring.tracing import exporting, open_runs
from fairserve.platform.monitoring.tracing.exporting import Tracing
from fairserve.platform.monitoring.tracing.open_runs import OpenRuns


def reject(tracing, times):
    for number in range(times):
        call = CallState(make_call(f"c{number}"), "row", "", 0.0, 0.0, print, None)
        tracing.calls.call_rejected(call, "rpm_user_limit", 1.0)


def test_a_tenant_beyond_its_bound_loses_its_own_oldest_run(monkeypatch):
    monkeypatch.setattr(open_runs, "MAX_RUNS", 4)
    monkeypatch.setattr(open_runs, "MAX_RUNS_OF_TENANT", 2)
    runs = OpenRuns()
    assert not runs.add("quiet", "q", INVALID_SPAN)
    for number in range(3):
        evicted = runs.add("loud", str(number), INVALID_SPAN)
        assert len(evicted) == (number == 2)
    assert [runs.get(each) is None for each in ("q", "0", "1", "2")] == [False, True, False, False]
    assert not runs.add("third", "a", INVALID_SPAN)
    assert len(runs.add("third", "b", INVALID_SPAN)) == 1  # the oldest of all
    assert runs.get("q") is None
    assert runs.pop("loud", "1") is INVALID_SPAN
    assert runs.pop("loud", "1") is None
    assert len(runs.clear()) == 3


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
