"""Outstanding calls per worker: s_w of Algorithm 2, needed by every router that uses load.

Workers with an equal count form one bit mask, so the least loaded worker of any set is found by
visiting the counts in ascending order: O(distinct counts) for any number of workers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

from fairserve.scheduling.locality.workers import Workers


def check_balance(by_calls: int | None, factor: float) -> None:
    """Raise ValueError for bounds that :meth:`Loads.unbalanced` does not accept."""
    if by_calls is not None and by_calls < 0:
        raise ValueError(f"balance_abs is {by_calls}; allowed: 0 or more, or null")
    if not factor >= 1:
        raise ValueError(f"balance_rel is {factor}; allowed: 1 or more")


class Loads:
    """Counts of dispatched calls that have not ended. Masks are those of ``workers``."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.calls: dict[str, int] = {}
        """Calls by worker in the order of joining; changed only here."""
        self.all = 0
        """Mask of all workers."""
        self._bits: dict[str, int] = {}
        self._masks: dict[int, int] = {}
        """Workers by count; no mask is empty."""
        self._counts: list[int] = []
        """Distinct counts of the workers, ascending."""

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker with outstanding calls. Raises ValueError if it was added before."""
        if worker_id in self.calls:
            raise ValueError(f"worker {worker_id!r} is known already")
        self._add(worker_id, calls)

    def _add(self, worker_id: str, count: int) -> None:
        bit = 1 << self._workers.slot(worker_id)
        self.calls[worker_id], self._bits[worker_id] = count, bit
        self.all |= bit
        self._join(bit, count)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker; unknown ones are ignored."""
        count = self.calls.pop(worker_id, None)
        if count is not None:
            bit = self._bits.pop(worker_id)
            self.all &= ~bit
            self._leave(bit, count)

    def dispatched(self, worker_id: str) -> None:
        """Count one more call. Raises KeyError for an unknown worker."""
        self._count(worker_id, 1)

    def finished(self, worker_id: str | None) -> None:
        """Count one call less; a lost worker is ignored."""
        if worker_id is not None and worker_id in self.calls:
            self._count(worker_id, -1)

    def least(self, mask: int) -> str | None:
        """Return the worker of the mask with the fewest calls; ties go to the smaller number."""
        masks = self._masks
        for count in self._counts:
            found = masks[count] & mask
            if found:
                return self._workers.first(found)
        return None

    def extremes(self) -> tuple[int, int]:
        """Return the fewest and the most outstanding calls. Raises IndexError without workers."""
        return self._counts[0], self._counts[-1]

    def unbalanced(self, by_calls: int | None, factor: float) -> bool:
        """Return whether the largest count exceeds the smallest by both ``by_calls`` and ``factor``.

        With ``by_calls`` None the answer is always False.
        """
        if by_calls is None:
            return False
        fewest, most = self.extremes()
        return most - fewest > by_calls and most > factor * fewest

    def _count(self, worker_id: str, more: int) -> None:
        bit, count = self._bits[worker_id], self.calls[worker_id]
        self._leave(bit, count)
        self.calls[worker_id] = count + more
        self._join(bit, count + more)

    def _join(self, bit: int, count: int) -> None:
        mask = self._masks.get(count)
        if mask is None:
            insort(self._counts, count)
            self._masks[count] = bit
        else:
            self._masks[count] = mask | bit

    def _leave(self, bit: int, count: int) -> None:
        left = self._masks[count] & ~bit
        if left:
            self._masks[count] = left
        else:
            del self._masks[count]
            del self._counts[bisect_left(self._counts, count)]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return dict(self.calls)

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot; the workers' numbers must be restored before."""
        self.calls, self._bits, self._masks, self._counts = {}, {}, {}, []
        self.all = 0
        for worker_id, count in state.items():
            self._add(worker_id, count)
