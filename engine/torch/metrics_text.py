"""The worker's /metrics in Prometheus' text format, under vLLM's names where vLLM has the metric."""

from __future__ import annotations

from fairserve.engine.kv_publisher import KvPublisher
from fairserve.engine.torch.engine import EngineStats
from fairserve.engine.torch.page_news import PageChange
from fairserve.engine.torch.page_pool import PAGE_TOKENS


def render(
    stats: EngineStats,
    model: str,
    capacity_tokens: int,
    kv_events: KvPublisher[PageChange] | None = None,
) -> str:
    """All metrics of one worker."""
    label = f'{{model_name="{_escape(model)}"}}'
    blocks = capacity_tokens // PAGE_TOKENS
    cache = f'{{block_size="{PAGE_TOKENS}",num_gpu_blocks="{blocks}"}}'
    rows = [
        ("num_requests_running", "gauge", "Sequences in the batch.", stats.running),
        ("num_requests_waiting", "gauge", "Sequences in the queue.", stats.waiting),
        (
            "kv_cache_usage_perc",
            "gauge",
            "Share of the KV cache that running sequences hold, 0 to 1.",
            stats.kv_used_share,
        ),
        (
            "prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queried_tokens,
        ),
        (
            "prefix_cache_hits_total",
            "counter",
            "Prompt tokens found in the prefix cache.",
            stats.prefix_hit_tokens,
        ),
        (
            "prompt_tokens_total",
            "counter",
            "Prompt tokens of admitted sequences.",
            stats.prompt_tokens,
        ),
        (
            "num_preemptions_total",
            "counter",
            "How often a sequence was put back into the queue.",
            stats.preempted,
        ),
        ("generation_tokens_total", "counter", "Generated tokens.", stats.generated_tokens),
    ]
    lines: list[str] = []
    for name, kind, text, value in rows:
        lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
        lines.append(f"vllm:{name}{label} {value}")
    ends = "vllm:request_success_total"
    lines += [f"# HELP {ends} Sequences that ended.", f"# TYPE {ends} counter"]
    for reason, count in (
        ("finished", stats.finished),
        ("abort", stats.cancelled),
        ("error", stats.failed),
    ):
        lines.append(f'{ends}{{finished_reason="{reason}",{label[1:]} {count}')
    lines += [
        "# HELP vllm:cache_config_info Sizes of the KV cache.",
        "# TYPE vllm:cache_config_info gauge",
        f"vllm:cache_config_info{cache} 1",
    ]
    if kv_events is not None:
        lines += _of_kv_events(kv_events)
    return "\n".join(lines) + "\n"


def _of_kv_events(publisher: KvPublisher[PageChange]) -> list[str]:
    """Where KV events are published, which vLLM does not tell, and how many."""
    name = "fairserve:kv_events"
    where = (
        f'endpoint="{_escape(publisher.endpoint)}"'
        f',replay_endpoint="{_escape(publisher.replay_endpoint)}"'
    )
    return [
        f"# HELP {name}_info Where KV events are published and replayed.",
        f"# TYPE {name}_info gauge",
        f"{name}_info{{{where}}} 1",
        f"# HELP {name}_batches_total Batches of KV events published.",
        f"# TYPE {name}_batches_total counter",
        f"{name}_batches_total {publisher.batches}",
        f"# HELP {name}_overflows_total Times that the whole cache had to be told anew.",
        f"# TYPE {name}_overflows_total counter",
        f"{name}_overflows_total {publisher.overflows}",
    ]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
