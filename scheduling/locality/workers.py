"""Workers as bits: every worker has a small number, so that a set of workers is one integer.

Routers, prefix tree and pool work on such masks; names are looked up only at the boundary. Numbers
are reused after a worker has left. Of equally good workers the smaller number wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any


class Workers:
    """Numbers of the workers of one pool."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._slots

    def slot(self, worker_id: str) -> int:
        """Return the worker's number; a new worker gets a free one."""
        slot = self._slots.get(worker_id)
        if slot is None:
            slot = 0
            while slot in self._names:
                slot += 1
            self._slots[worker_id] = slot
            self._names[slot] = worker_id
        return slot

    def forget(self, worker_id: str) -> None:
        """Free the worker's number; unknown workers are ignored."""
        slot = self._slots.pop(worker_id, None)
        if slot is not None:
            del self._names[slot]

    def name(self, slot: int) -> str:
        """Return the worker of this number. Raises KeyError."""
        return self._names[slot]

    def first(self, mask: int) -> str:
        """Return the worker with the smallest number in the mask. Raises KeyError if it is empty."""
        return self._names[(mask & -mask).bit_length() - 1]

    def mask(self, workers: Collection[str]) -> int:
        """Return the mask of some workers; unknown ones are ignored. O(1) for a :class:`WorkerSet`."""
        if isinstance(workers, WorkerSet) and workers.workers is self:
            return workers.mask
        mask = 0
        for worker in workers:
            slot = self._slots.get(worker)
            if slot is not None:
                mask |= 1 << slot
        return mask

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return dict(self._slots)

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._slots = dict(state)
        self._names = {slot: worker for worker, slot in self._slots.items()}


class WorkerSet(Collection[str]):
    """An immutable set of workers, by mask. Iterates in the order of their numbers."""

    __slots__ = ("mask", "workers")

    def __init__(self, workers: Workers, mask: int) -> None:
        self.workers = workers
        self.mask = mask

    def __contains__(self, worker_id: object) -> bool:
        return (
            isinstance(worker_id, str)
            and worker_id in self.workers
            and bool(self.mask >> self.workers.slot(worker_id) & 1)
        )

    def __iter__(self) -> Iterator[str]:
        left = self.mask
        while left:
            yield self.workers.first(left)
            left &= left - 1

    def __len__(self) -> int:
        return self.mask.bit_count()

    def without(self, workers: Collection[str]) -> WorkerSet:
        """Return the workers that are not among ``workers``."""
        return WorkerSet(self.workers, self.mask & ~self.workers.mask(workers))

    def __repr__(self) -> str:
        return f"WorkerSet({', '.join(self)})"
