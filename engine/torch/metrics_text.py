"""The worker's /metrics in Prometheus' text format, under vLLM's names."""

from __future__ import annotations

from fairserve.engine.torch.engine import EngineStats
from fairserve.engine.torch.page_pool import PAGE_TOKENS


def render(stats: EngineStats, model: str, capacity_tokens: int) -> str:
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
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
