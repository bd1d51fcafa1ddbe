"""How much of a worker's KV cache calls hold that are not ours.

A worker may serve others beside the platform. It tells what share of its cache is in use and how many
sequences it has; what our own calls hold there is known. The rest is foreign, if it has more sequences
than we have sent. Of two readings in a row the smaller one counts, because numbers of one moment come
from two places: a call of ours that has just ended may still be in the worker's.

Weaknesses: what foreign calls will need, and those that wait, are not in it. A prefix that several of
our calls share is held once and counted for each, and a call of ours that waits there is counted as if
it ran, so the number is too small where that happens. Nothing is told of who the others are.
"""

from __future__ import annotations

from fairserve.engine.wire.base import WorkerMetrics


class ForeignLoad:
    """Of one worker, from one reading to the next."""

    def __init__(self) -> None:
        self._before_tokens = 0

    def read(
        self, metrics: WorkerMetrics, sequences: int, own_tokens: int, capacity_tokens: int
    ) -> int:
        """Foreign tokens, while ``sequences`` of ours are there and hold ``own_tokens``."""
        now_tokens = _now(metrics, sequences, own_tokens, capacity_tokens)
        told, self._before_tokens = min(self._before_tokens, now_tokens), now_tokens
        return told


def _now(metrics: WorkerMetrics, sequences: int, own_tokens: int, capacity_tokens: int) -> int:
    if metrics.kv_used_share is None or metrics.running is None:
        return 0
    if metrics.running + (metrics.waiting or 0) <= sequences:
        return 0
    return max(0, round(metrics.kv_used_share * capacity_tokens) - own_tokens)
