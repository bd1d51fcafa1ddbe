"""Least loaded: the open worker with the fewest outstanding calls. Ignores caches and clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.routers.loads import Loads


class LeastLoaded:
    """Baseline router by outstanding calls. O(distinct loads) per call."""

    def __init__(self, locality: Locality) -> None:
        self._workers = locality.workers
        self._loads = Loads(locality.workers)

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker."""
        self._loads.add_worker(worker_id, calls)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker."""
        self._loads.remove_worker(worker_id)

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return the open worker with the fewest outstanding calls."""
        return self._loads.least(self._workers.mask(open_workers))

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Count the call."""
        self._loads.dispatched(worker_id)

    def started(self, call_id: str) -> None:
        """Do nothing: this router does not use it."""

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Stop counting the call."""
        self._loads.finished(worker_id)

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """Return no deficits: this router has none."""
        return {}

    def snapshot(self) -> dict[str, Any]:
        """Return the outstanding calls per worker."""
        return {"loads": self._loads.snapshot()}

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._loads.restore(state["loads"])
