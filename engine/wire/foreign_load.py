"""Estimates the part of a worker's KV cache that is held by calls of others.

A worker may serve others besides the platform. It reports the used share of its cache and its
number of sequences; the tokens of our own calls are known. The rest is foreign if it has more
sequences than we have sent. The smaller of two consecutive readings counts, because the numbers of
one moment have two sources: a call of ours that has just ended may still be counted by the worker.

Weaknesses: the future needs of foreign calls, and waiting ones, are not counted. A prefix shared by
several of our calls is held once and counted for each, and a call of ours that waits there is
counted as running, so the estimate may be too low. The other senders are unknown.
"""

from __future__ import annotations

from fairserve.engine.wire.base import WorkerMetrics


class ForeignLoad:
    """Foreign load of one worker, from reading to reading."""

    def __init__(self) -> None:
        self._before_tokens = 0

    def read(
        self, metrics: WorkerMetrics, sequences: int, own_tokens: int, capacity_tokens: int
    ) -> int:
        """Return foreign tokens, given our number of ``sequences`` there and their tokens."""
        now_tokens = _now(metrics, sequences, own_tokens, capacity_tokens)
        lower_tokens = min(self._before_tokens, now_tokens)
        self._before_tokens = now_tokens
        return lower_tokens


def _now(metrics: WorkerMetrics, sequences: int, own_tokens: int, capacity_tokens: int) -> int:
    if metrics.kv_used_share is None or metrics.running is None:
        return 0
    if metrics.running + (metrics.waiting or 0) <= sequences:
        return 0
    return max(0, round(metrics.kv_used_share * capacity_tokens) - own_tokens)
