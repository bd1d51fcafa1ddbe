"""Round robin over clients, as the flow control of Kubernetes' Gateway API Inference Extension does.

Each client has a queue in the order of arrival, and the clients with queued calls take turns: one call
a turn, whatever its size. A client that was served goes to the end, as does one whose queue was empty
when its call arrived. The client is the whole path, without levels: the extension knows one id a client.

Written from the extension's description of its fairness policy, as a baseline. Departures: it orders the
clients by id and continues after the last one served; here they follow the order of their arrival. And a
client keeps its turn when it gets a worker that no other waiting client can use.

Cost: O(log clients + log calls of the client) a call, and O(different restrictions) for a selection.
Weakness: calls are counted, not tokens, so a client with long calls gets as much more service; and a
tenant gets a turn for every user that it names.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fairserve.interactions.call import Call, ClientPath, Restriction
from fairserve.interactions.lazy_heap import LazyHeap
from fairserve.scheduling.feeders.uncharged import UnchargedFeeder

_Place = tuple[int, str]
"""Place of a call in the order of arrival, and its id."""


class _Lane:
    """Queued calls with one restriction, by client."""

    def __init__(self, turns: Mapping[ClientPath, int]) -> None:
        self._turns = turns
        self.queues: dict[ClientPath, list[_Place]] = {}
        """Calls of each client in the order of arrival."""
        self._order: LazyHeap[ClientPath] = LazyHeap()
        """Clients by a lower bound of their turn."""

    def add(self, client: ClientPath, place: _Place) -> None:
        insort(self.queues.setdefault(client, []), place)
        self.turn(client)

    def discard(self, client: ClientPath, place: _Place) -> None:
        own = self.queues[client]
        del own[bisect_left(own, place)]
        if not own:
            del self.queues[client]
            self._order.discard(client)

    def turn(self, client: ClientPath) -> None:
        """Order a client that got a call here, or an earlier turn."""
        self._order.lower(client, self._turns[client])

    def next(self) -> tuple[int, ClientPath]:
        """Return the client whose turn is next, with its turn. There must be one."""
        while True:
            turn, client = self._order.first()
            if turn == self._turns[client]:
                return turn, client
            self._order.set(client, self._turns[client])


class RoundRobinFeeder(UnchargedFeeder):
    """A queue for each client; the clients take turns."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._places: dict[str, int] = {}
        """Place of each queued call in the order of arrival; a requeued call precedes all others."""
        self._turns: dict[ClientPath, int] = {}
        """Turn of each client with queued calls; the smallest is next."""
        self._queued: dict[ClientPath, int] = {}
        """Number of queued calls of each client."""
        self._lanes: dict[Restriction, _Lane] = {}
        self._first, self._last = 0, 0
        """First and last place in the order of arrival."""
        self._first_turn, self._last_turn = 0, 0
        self._alone: str | None = None
        """Call of the last selection, if it left out the calls of all other clients."""

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
        client = call.client
        if client not in self._turns:
            self._last_turn += 1
            self._turns[client] = self._last_turn
        self._queued[client] = self._queued.get(client, 0) + 1
        lane = self._lanes.get(call.restriction)
        if lane is None:
            lane = self._lanes[call.restriction] = _Lane(self._turns)
        lane.add(client, (place, call.call_id))

    def _leave(self, call_id: str) -> Call:
        call = self._calls.pop(call_id)
        lane = self._lanes[call.restriction]
        lane.discard(call.client, (self._places.pop(call_id), call_id))
        if not lane.queues:
            del self._lanes[call.restriction]
        self._queued[call.client] -= 1
        if not self._queued[call.client]:
            del self._queued[call.client], self._turns[call.client]
        return call

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call and return it."""
        return self._leave(call_id) if call_id in self._calls else None

    def peek(
        self, open_workers: Collection[str], excluded: Collection[Restriction] = frozenset()
    ) -> Call | None:
        """Return the oldest call of the next client that has one that is not excluded."""
        lanes = [lane for each, lane in self._lanes.items() if each not in excluded]
        if not lanes:
            return None
        _, client = min(lane.next() for lane in lanes)
        _, call_id = min(lane.queues[client][0] for lane in lanes if client in lane.queues)
        left_out = len(lanes) < len(self._lanes)
        alone = left_out and all(lane.queues.keys() <= {client} for lane in lanes)
        self._alone = call_id if alone else None
        return self._calls[call_id]

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Remove a queued call; its client waits for all others. Raises KeyError if it is not queued."""
        call = self._leave(call_id)
        alone, self._alone = self._alone == call_id, None
        if call.client in self._turns and not alone:
            self._last_turn += 1
            self._turns[call.client] = self._last_turn
        return 1.0

    def requeue(self, call: Call) -> None:
        """Requeue a call before all others of its client, whose turn is next."""
        self._first -= 1
        self._first_turn -= 1
        self._turns[call.client] = self._first_turn
        self._enter(call, self._first)
        for lane in self._lanes.values():
            if call.client in lane.queues:
                lane.turn(call.client)

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
        queues: dict[ClientPath, list[_Place]] = {
            client: [] for client in sorted(self._turns, key=self._turns.__getitem__)
        }
        for call_id, call in self._calls.items():
            queues[call.client].append((self._places[call_id], call_id))
        return {
            "turns": [
                [[call_id, place] for place, call_id in sorted(queue)] for queue in queues.values()
            ],
            "first": self._first,
            "last": self._last,
        }

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot."""
        self._calls, self._places, self._queued, self._lanes = {}, {}, {}, {}
        self._turns = {}
        self._first, self._last = state["first"], state["last"]
        self._first_turn = self._last_turn = 0
        for queue in state["turns"]:
            for call_id, place in queue:
                self._enter(calls[call_id], place)
