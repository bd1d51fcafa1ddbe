"""First come, first served: calls enter the cluster in the order of their arrival.

The feeder of every baseline. The charge factor is 1, or 1 / weight for weighted VTC (VTC 4.3).
Weakness: one client can fill the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.uncharged import UnchargedFeeder


@dataclass(frozen=True, slots=True)
class FcfsOptions:
    """Options: with ``weighted``, user weights reach the local schedulers as charge factors."""

    weighted: bool = False


class FcfsFeeder(UnchargedFeeder):
    """A queue in the order of arrival. Every operation is O(1)."""

    def __init__(self, directory: Directory, options: FcfsOptions = FcfsOptions()) -> None:
        self.options = options
        self._directory = directory
        self._queue: OrderedDict[str, Call] = OrderedDict()

    def add(self, call: Call) -> None:
        """Append a call. Raises ValueError for an id that is queued already."""
        if call.call_id in self._queue:
            raise ValueError(f"call {call.call_id!r} is queued already")
        self._queue[call.call_id] = call

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call and return it."""
        return self._queue.pop(call_id, None)

    def peek(
        self, open_workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """Return the oldest call that is not excluded."""
        return next((self._queue[name] for name in self._queue if name not in excluded), None)

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Remove a queued call. Raises KeyError if it is not queued."""
        call = self._queue.pop(call_id)
        if not self.options.weighted:
            return 1.0
        return 1.0 / self._directory.weight(call.tenant, call.app, call.user)

    def requeue(self, call: Call) -> None:
        """Requeue a call at the front."""
        self._queue[call.call_id] = call
        self._queue.move_to_end(call.call_id, last=False)

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Set the clients of calls; the order does not change. Raises KeyError for an unknown call."""
        for call_id, path in paths.items():
            self._queue[call_id].client = path

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls."""
        return self._queue.values()

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._queue)

    def snapshot(self) -> dict[str, Any]:
        """Return the queue, oldest first."""
        return {"queue": list(self._queue)}

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._queue = OrderedDict((call_id, calls[call_id]) for call_id in state["queue"])
