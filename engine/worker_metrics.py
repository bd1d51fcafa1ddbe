"""Reads a worker's ``/metrics``: queue and KV pressure, sizes, and where KV events are published.

Names are vLLM's, which our own worker uses, too; names of older versions are read where they are absent.
A worker that tells of several engines (data parallel) is taken as one: counts are summed, shares
averaged. One pass over the lines, some 0.2 ms for vLLM's 100 KB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from fairserve.engine.base import KvEndpoints, WorkerMetrics

_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
_USED = b"vllm:kv_cache_usage_perc"
_QUERIED = b"vllm:prefix_cache_queries_total"
_HIT = b"vllm:prefix_cache_hits_total"
_OLDER = {
    b"vllm:gpu_cache_usage_perc": _USED,
    b"vllm:gpu_prefix_cache_queries_total": _QUERIED,
    b"vllm:gpu_prefix_cache_hits_total": _HIT,
}
_NAMES = (_RUNNING, _WAITING, _USED, _QUERIED, _HIT, *_OLDER)
_CACHE_CONFIG = re.compile(rb"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_KV_EVENTS = re.compile(rb"^fairserve:kv_events_info\{([^}]*)\}", re.MULTILINE)
_ANY_HOST = re.compile(r"^tcp://(\*|0\.0\.0\.0|\[::\])(?=:)")
_LABEL = re.compile(rb'(\w+)="([^"]*)"')


def read_metrics(text: bytes) -> WorkerMetrics:
    """What the text tells; what it does not tell, or cannot be read, is None."""
    values: dict[bytes, list[float]] = {}
    for line in text.split(b"\n"):
        if not line.startswith(_NAMES):
            continue
        name = re.split(rb"[{ ]", line, maxsplit=1)[0]
        try:
            value = float(line.rsplit(b"}", 1)[-1].removeprefix(name).split()[0])
        except (ValueError, IndexError):
            continue
        if name in _NAMES and math.isfinite(value) and value >= 0:
            values.setdefault(name, []).append(value)
    for older, name in _OLDER.items():
        if older in values:
            values.setdefault(name, values[older])
    block_tokens, blocks = _cache_config(text)
    return WorkerMetrics(
        running=_whole(values, _RUNNING),
        waiting=_whole(values, _WAITING),
        kv_used_share=_of(values, _USED, lambda told: min(1.0, sum(told) / len(told))),
        prefix_queried_tokens=_whole(values, _QUERIED),
        prefix_hit_tokens=_whole(values, _HIT),
        kv_capacity_tokens=block_tokens * blocks if block_tokens and blocks else None,
        block_tokens=block_tokens,
    )


def kv_endpoints_of(metrics: bytes, base_url: str) -> KvEndpoints | None:
    """Where the worker publishes KV events, if its metrics say so (vLLM's do not)."""
    found = _KV_EVENTS.search(metrics)
    if found is None:
        return None
    labels = {name: value.decode() for name, value in _LABEL.findall(found.group(1))}
    told = KvEndpoints(labels.get(b"endpoint", ""), labels.get(b"replay_endpoint", ""))
    return at_host_of(base_url, told) if told.events else None


def at_host_of(base_url: str, endpoints: KvEndpoints) -> KvEndpoints:
    """Endpoints at every address of the worker's machine (``tcp://*:5557``) as those of its URL."""
    host = urlsplit(base_url).hostname or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    events, replay = (
        _ANY_HOST.sub(f"tcp://{host}", each) for each in (endpoints.events, endpoints.replay)
    )
    return KvEndpoints(events, replay)


def _cache_config(text: bytes) -> tuple[int | None, int | None]:
    """Tokens of a block, and blocks."""
    found = _CACHE_CONFIG.search(text)
    if found is None:
        return None, None
    labels = dict(_LABEL.findall(found.group(1)))

    def number(name: bytes) -> int | None:
        value = labels.get(name, b"")
        return int(value) if value.isdigit() and int(value) > 0 else None

    return number(b"block_size"), number(b"num_gpu_blocks")


def _whole(values: dict[bytes, list[float]], name: bytes) -> int | None:
    total = _of(values, name, sum)
    return None if total is None else int(total)


def _of(
    values: dict[bytes, list[float]], name: bytes, merge: Callable[[list[float]], float]
) -> float | None:
    told = values.get(name)
    return merge(told) if told else None
