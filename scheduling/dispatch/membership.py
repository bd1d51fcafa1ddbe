"""Membership of workers in the model pools: they join, report, drain, and are lost.

Part of the dispatcher. O(1) per event, plus the router's cost for a join, drain or loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fairserve.scheduling import events as ev
from fairserve.scheduling.dispatch.model_pool import ModelPool
from fairserve.scheduling.dispatch.worker_table import Worker
from fairserve.scheduling.errors import UnknownWorkerError


class Membership:
    """The workers of all pools. ``pool_of`` returns the pool of a model, created on first use."""

    def __init__(self, pool_of: Callable[[str], ModelPool]) -> None:
        self._pool_of = pool_of
        self._homes: dict[str, ModelPool] = {}
        self.handlers: dict[type, Callable[[Any, float], list[ev.Command]]] = {
            ev.WorkerJoined: self._on_joined,
            ev.WorkerReported: self._on_reported,
            ev.WorkerDraining: self._on_draining,
            ev.WorkerUndrained: self._on_undrained,
            ev.WorkerLost: self._on_lost,
            ev.WorkerCached: self._on_cache_report,
            ev.WorkerEvicted: self._on_cache_report,
            ev.WorkerCacheReset: self._on_cache_report,
        }

    def compose(self, pools: Iterable[ModelPool]) -> None:
        """Replace the pools whose workers are managed."""
        self._homes = {worker_id: each for each in pools for worker_id in each.worker_table.workers}

    def lose_silent(self, silence_s: float, now_s: float) -> None:
        """Remove workers that have reported before, but not for this long."""
        for worker_id, pool in list(self._homes.items()):
            last_s = pool.worker_table.workers[worker_id].last_report_s
            if last_s is not None and now_s - last_s > silence_s:
                self._on_lost(ev.WorkerLost(worker_id), now_s)

    def _require(self, worker_id: str) -> tuple[ModelPool, Worker]:
        pool = self._homes.get(worker_id)
        if pool is None:
            known = ", ".join(self._homes) or "none"
            raise UnknownWorkerError(f"unknown worker {worker_id!r}; joined: {known}")
        return pool, pool.worker_table.workers[worker_id]

    def _on_joined(self, event: ev.WorkerJoined, now_s: float) -> list[ev.Command]:
        if event.worker_id in self._homes:
            raise ValueError(f"worker {event.worker_id!r} has joined already")
        pool = self._pool_of(event.model)
        commands = pool.join(event)
        self._homes[event.worker_id] = pool
        return commands

    def _on_reported(self, event: ev.WorkerReported, now_s: float) -> list[ev.Command]:
        pool, worker = self._require(event.worker_id)
        pool.worker_table.report(worker, event.foreign_tokens, now_s)
        return []

    def _on_draining(self, event: ev.WorkerDraining, now_s: float) -> list[ev.Command]:
        pool, worker = self._require(event.worker_id)
        pool.drain(worker)
        return []

    def _on_undrained(self, event: ev.WorkerUndrained, now_s: float) -> list[ev.Command]:
        pool, worker = self._require(event.worker_id)
        return pool.undrain(worker)

    def _on_lost(self, event: ev.WorkerLost, now_s: float) -> list[ev.Command]:
        pool, worker = self._require(event.worker_id)
        pool.lose(worker)
        del self._homes[event.worker_id]
        return []

    def _on_cache_report(self, event: ev.CacheReport, now_s: float) -> list[ev.Command]:
        pool = self._homes.get(event.worker_id)
        if pool is not None:  # otherwise the worker has left, and its event is late
            pool.locality.reports.take(event)
        return []
