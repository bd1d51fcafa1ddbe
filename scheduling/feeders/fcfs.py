"""First come, first served: calls enter the cluster in the order of their arrival.

The feeder of every baseline. The charge factor is 1, or 1 / weight for weighted VTC (VTC 4.3).
Weakness: one client can fill the queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fairserve.interactions.call import Call, ClientPath, Restriction
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.uncharged import UnchargedFeeder


@dataclass(frozen=True, slots=True)
class FcfsOptions:
    """Options: with ``weighted``, user weights reach the local schedulers as charge factors."""

    weighted: bool = False


class FcfsFeeder(UnchargedFeeder):
    """A queue in the order of arrival. O(1), and O(different restrictions) for a selection."""

    def __init__(self, directory: Directory, options: FcfsOptions = FcfsOptions()) -> None:
        self.options = options
        self._directory = directory
        self._calls: dict[str, Call] = {}
        self._queues: dict[Restriction, OrderedDict[str, int]] = {}
        """Place of each queued call in the order of arrival, by restriction; ascending."""
        self._first, self._last = 0, 0

    def add(self, call: Call) -> None:
        """Append a call. Raises ValueError for an id that is queued already."""
        if call.call_id in self._calls:
            raise ValueError(f"call {call.call_id!r} is queued already")
        self._last += 1
        self._enter(call, self._last)

    def _enter(self, call: Call, place: int) -> None:
        self._calls[call.call_id] = call
        self._queues.setdefault(call.restriction, OrderedDict())[call.call_id] = place

    def _leave(self, call_id: str) -> Call:
        call = self._calls.pop(call_id)
        alike = self._queues[call.restriction]
        del alike[call_id]
        if not alike:
            del self._queues[call.restriction]
        return call

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call and return it."""
        return self._leave(call_id) if call_id in self._calls else None

    def peek(
        self, open_workers: Collection[str], excluded: Collection[Restriction] = frozenset()
    ) -> Call | None:
        """Return the oldest call that is not excluded."""
        queues = (queue for each, queue in self._queues.items() if each not in excluded)
        firsts = (next(iter(queue.items())) for queue in queues)
        oldest = min(firsts, key=itemgetter(1), default=None)
        return None if oldest is None else self._calls[oldest[0]]

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Remove a queued call. Raises KeyError if it is not queued."""
        call = self._leave(call_id)
        if not self.options.weighted:
            return 1.0
        weight = self._directory.weight(call.tenant, call.app, call.user)
        return 1.0 / (weight * self._directory.tier_weight(call))

    def requeue(self, call: Call) -> None:
        """Requeue a call at the front."""
        self._first -= 1
        self._enter(call, self._first)
        self._queues[call.restriction].move_to_end(call.call_id, last=False)

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Set the clients of calls; the order does not change. Raises KeyError for an unknown call."""
        for call_id, path in paths.items():
            self._calls[call_id].client = path

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls."""
        return self._calls.values()

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._calls)

    def snapshot(self) -> dict[str, Any]:
        """Return the queue, oldest first."""
        places = (item for queue in self._queues.values() for item in queue.items())
        return {"queue": [call_id for call_id, _ in sorted(places, key=itemgetter(1))]}

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._calls, self._queues = {}, {}
        self._first, self._last = 0, len(state["queue"])
        for place, call_id in enumerate(state["queue"], 1):
            self._enter(calls[call_id], place)
