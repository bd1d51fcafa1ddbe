"""Outstanding calls per worker: s_w of Algorithm 2, needed by every router that looks at load."""

from __future__ import annotations

from collections.abc import Iterable


class Loads:
    """Counts of calls that were dispatched and have not ended, in the order of joining."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def add_worker(self, worker_id: str) -> None:
        """A worker joins with nothing outstanding. Raises ValueError if it is there already."""
        if worker_id in self.calls:
            raise ValueError(f"worker {worker_id!r} is known already")
        self.calls[worker_id] = 0

    def remove_worker(self, worker_id: str) -> None:
        """A worker is gone; unknown ones are ignored."""
        self.calls.pop(worker_id, None)

    def dispatched(self, worker_id: str) -> None:
        """One more call. Raises KeyError for an unknown worker."""
        self.calls[worker_id] += 1

    def finished(self, worker_id: str | None) -> None:
        """One call less; a worker that is gone is ignored."""
        if worker_id is not None and worker_id in self.calls:
            self.calls[worker_id] -= 1

    def least(self, workers: Iterable[str]) -> str | None:
        """The worker with the fewest outstanding calls; ties by order of joining."""
        wanted = set(workers)
        known = [worker for worker in self.calls if worker in wanted]
        return min(known, key=self.calls.__getitem__, default=None)
