"""Round robin over clients, as the flow control of Kubernetes' Gateway API Inference Extension does.

Each client has a queue in the order of arrival, and the clients with queued calls take turns: one call
a turn, whatever its size. A client that was served goes to the end, as does one whose queue was empty
when its call arrived. The client is the whole path, without levels: the extension knows one id a client.

Written from the extension's description of its fairness policy, as a baseline. Departure: it orders the
clients by id and continues after the last one served; here they follow the order of their arrival.

Cost: O(1) a call; O(waiting clients) for a selection with excluded calls, O(calls of the client) for a
call that moves. Weakness: calls are counted, not tokens, so a client with long calls gets as much more
service; and a tenant gets a turn for every user that it names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Any

from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.feeders.uncharged import UnchargedFeeder


class RoundRobinFeeder(UnchargedFeeder):
    """A queue for each client; the clients take turns."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._places: dict[str, int] = {}
        """Place of each queued call in the order of arrival; a requeued call precedes all others."""
        self._turns: OrderedDict[ClientPath, dict[str, None]] = OrderedDict()
        """Ids of each client's queued calls in the order of arrival; the client whose turn is next
        comes first."""
        self._first, self._last = 0, 0

    def add(self, call: Call) -> None:
        """Queue a call. Raises ValueError for an id that is queued already."""
        if call.call_id in self._calls:
            raise ValueError(f"call {call.call_id!r} is queued already")
        self._last += 1
        self._enter(call, self._last)

    def _enter(self, call: Call, place: int) -> None:
        """Add a call to the queue of its client, before the later ones there."""
        self._calls[call.call_id] = call
        self._places[call.call_id] = place
        queue = self._turns.setdefault(call.client, {})
        later = list(takewhile(lambda name: self._places[name] > place, reversed(queue)))
        queue[call.call_id] = None
        for name in reversed(later):
            queue[name] = queue.pop(name)

    def _leave(self, call_id: str) -> Call:
        call = self._calls.pop(call_id)
        del self._places[call_id]
        queue = self._turns[call.client]
        del queue[call_id]
        if not queue:
            del self._turns[call.client]
        return call

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call and return it."""
        return self._leave(call_id) if call_id in self._calls else None

    def peek(
        self, open_workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """Return the oldest call of the next client that has one that is not excluded."""
        for queue in self._turns.values():
            for call_id in queue:
                if call_id not in excluded:
                    return self._calls[call_id]
        return None

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Remove a queued call; its client waits for all others. Raises KeyError if it is not queued."""
        call = self._leave(call_id)
        if call.client in self._turns:
            self._turns.move_to_end(call.client)
        return 1.0

    def requeue(self, call: Call) -> None:
        """Requeue a call before all others of its client, whose turn is next."""
        self._first -= 1
        self._enter(call, self._first)
        self._turns.move_to_end(call.client, last=False)

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Move calls to the queues of other clients. Raises KeyError for an unknown call."""
        for call_id, path in paths.items():
            place = self._places[call_id]
            call = self._leave(call_id)
            call.client = path
            self._enter(call, place)

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls."""
        return self._calls.values()

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._calls)

    def snapshot(self) -> dict[str, Any]:
        """Return the queues in the order of the turns, each call with its place."""
        return {
            "turns": [
                [[name, self._places[name]] for name in queue] for queue in self._turns.values()
            ],
            "first": self._first,
            "last": self._last,
        }

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._calls, self._places, self._turns = {}, {}, OrderedDict()
        self._first, self._last = state["first"], state["last"]
        for queue in state["turns"]:
            for call_id, place in queue:
                self._enter(calls[call_id], place)
