"""The worker's /metrics in Prometheus' text format, with vLLM's names where vLLM has the metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairserve.engine.kv_events.publisher import KvPublisher
from fairserve.engine.torch.engine import EngineStats
from fairserve.engine.torch.page_changes import PageChange
from fairserve.engine.torch.page_pool import PAGE_TOKENS


def render(
    stats: EngineStats,
    model: str,
    capacity_tokens: int,
    kv_events: KvPublisher[PageChange] | None = None,
) -> bytes:
    """Return all metrics of one worker as a page."""
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(stats, model, capacity_tokens, kv_events))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True)
class _WorkerCollector(Collector):
    stats: EngineStats
    model: str
    capacity_tokens: int
    kv_events: KvPublisher[PageChange] | None

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        yield self._gauge("num_requests_running", "Sequences in the batch.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences in the queue.", stats.waiting)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the KV cache that running sequences hold, 0 to 1.",
            stats.kv_used_share,
        )
        yield self._counter(
            "prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queried_tokens,
        )
        yield self._counter(
            "prefix_cache_hits",
            "Prompt tokens found in the prefix cache.",
            stats.prefix_hit_tokens,
        )
        yield self._counter(
            "prompt_tokens", "Prompt tokens of admitted sequences.", stats.prompt_tokens
        )
        yield self._counter(
            "num_preemptions", "Sequences requeued to free their pages.", stats.preempted
        )
        yield self._counter("generation_tokens", "Generated tokens.", stats.generated_tokens)
        ends = CounterMetricFamily(
            "vllm:request_success",
            "Sequences that ended.",
            labels=["finished_reason", "model_name"],
        )
        for reason, count in (
            ("finished", stats.finished),
            ("abort", stats.cancelled),
            ("error", stats.failed),
        ):
            ends.add_metric([reason, self.model], count)
        yield ends
        cache = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Sizes of the KV cache.",
            labels=["block_size", "num_gpu_blocks"],
        )
        cache.add_metric([str(PAGE_TOKENS), str(self.capacity_tokens // PAGE_TOKENS)], 1)
        yield cache
        slots = GaugeMetricFamily("fairserve:batch_slots", "Sequences that run at a time, at most.")
        slots.add_metric([], stats.slots)
        yield slots
        if self.kv_events is not None:
            yield from _kv_events(self.kv_events)

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        gauge.add_metric([self.model], value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        counter.add_metric([self.model], value)
        return counter


def _kv_events(publisher: KvPublisher[PageChange]) -> Iterator[Metric]:
    """Yield the endpoints of the KV events, which vLLM does not report, and their counters."""
    name = "fairserve:kv_events"
    info = GaugeMetricFamily(
        f"{name}_info",
        "Endpoints where KV events are published and replayed.",
        labels=["endpoint", "replay_endpoint"],
    )
    info.add_metric([publisher.endpoint, publisher.replay_endpoint], 1)
    yield info
    yield CounterMetricFamily(
        f"{name}_batches", "Batches of KV events published.", value=publisher.batches
    )
    yield CounterMetricFamily(
        f"{name}_overflows",
        "Times that the state of the whole cache had to be published again.",
        value=publisher.overflows,
    )
