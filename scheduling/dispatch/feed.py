"""The feed: moves calls from the cluster's queue to workers, within the workers' feed windows.

    feeder queue -> [feed window] -> router -> worker

The feeder chooses the next call for the open workers, and the router its worker.

A pool has a second feed for background calls. It is fed only while the first one is empty, and only
to spare workers (:mod:`fairserve.scheduling.dispatch.worker_table`). Each attempt costs as much as
there are different sizes in the queue, which clients choose. So there is none for events of other
calls, nor for an arrival behind others: these wait for the next tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from fairserve.interactions.call import UNRESTRICTED, Call, Restriction, client_id
from fairserve.scheduling import events as ev
from fairserve.scheduling.base import Feeder, Router
from fairserve.scheduling.dispatch.background_room import BackgroundRoom
from fairserve.scheduling.dispatch.backlog import Backlog
from fairserve.scheduling.dispatch.queue_places import QueuePlaces
from fairserve.scheduling.dispatch.queued_call import QueuedCall
from fairserve.scheduling.dispatch.worker_table import Worker, WorkerTable
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.workers import WorkerSet
from fairserve.scheduling.residents.gate import RunGate


class Feed:
    """Queue of waiting calls and their assignment to workers. Cost per call: feeder's plus router's."""

    def __init__(
        self,
        locality: Locality,
        feeder: Feeder,
        router: Router,
        worker_table: WorkerTable,
        first: Feed | None = None,
    ) -> None:
        """With ``first``, this is the feed of background calls: all calls of ``first`` precede them."""
        self._first = first
        self.gate: RunGate | None = None
        """If set, a run begins once its memory fits."""
        self._locality = locality
        self._feeder = feeder
        self._router = router
        self._worker_table = worker_table
        self._queued: dict[str, QueuedCall] = {}
        self.places = QueuePlaces()
        """Owners of the queued calls; read-only."""
        self._restricted: Counter[Restriction] = Counter()
        """Number of queued calls that not every worker can take, by restriction."""
        self.demand_tokens = 0
        """Uncached prompt tokens plus expected output tokens of all queued calls."""
        self.backlog = Backlog()

    def add(self, live: QueuedCall) -> list[ev.Command]:
        """Queue an arriving call. Raises ValueError if it is queued already."""
        self._enter(live)
        self._feeder.add(live.call)
        return self.pump() if self._first is None or len(self) == 1 else []

    def requeue(self, live: QueuedCall) -> list[ev.Command]:
        """Requeue a call whose worker failed before any output of it."""
        self._enter(live)
        self._feeder.requeue(live.call)
        return self.pump()

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._queued)

    def _enter(self, live: QueuedCall) -> None:
        call = live.call
        cached, _ = self._locality.match(call, self._worker_table.serving.mask)
        live.demand_tokens = call.prompt_tokens - cached + call.expected_output_tokens
        self._count(live)

    def _count(self, live: QueuedCall) -> None:
        self._queued[live.call.call_id] = live
        self.demand_tokens += live.demand_tokens
        self.places.enter(live)
        restriction = live.call.restriction
        if restriction is not UNRESTRICTED:
            self._restricted[restriction] += 1

    def _leave(self, live: QueuedCall) -> None:
        del self._queued[live.call.call_id]
        self.demand_tokens -= live.demand_tokens
        if not self._queued:
            self.backlog.emptied = True
        self.places.leave(live.call)
        if self._restricted and (restriction := live.call.restriction) is not UNRESTRICTED:
            self._restricted[restriction] -= 1
            if not self._restricted[restriction]:
                del self._restricted[restriction]

    def remove(self, live: QueuedCall) -> None:
        """Remove a queued call without dispatching it."""
        self._feeder.remove(live.call.call_id)
        self._leave(live)
        if self.gate is not None:
            self.gate.unqueue(live.call)

    def pump(self) -> list[ev.Command]:
        """Dispatch queued calls to open workers until there are no more of either."""
        commands: list[ev.Command] = []
        if self._first is not None:
            if not self._first._queued:
                self._pump_spare(commands)
            return commands
        while self._queued and self._worker_table.open.mask:
            workers = self._worker_table.open
            excluded = self.not_for(workers)
            if self.gate is None:
                call = self._feeder.peek(workers, excluded)
            else:
                call, workers = self.gate.next(workers, excluded)
            if call is None or not self._send(call, workers, commands):
                break
        return commands

    def _pump_spare(self, commands: list[ev.Command]) -> None:
        """Dispatch background calls to spare workers until there are no more of either.

        The first call waits until the background calls before it have left room for it. Calls for
        which no worker has room beside its other calls let the next ones pass. Cost of each: plus
        O(different restrictions * workers).
        """
        table = self._worker_table
        while self._queued and (spare := table.spare(1, 1)):
            over = {each for each in self._restricted if self._is_over(each)}
            call = self._feeder.peek(spare, {*self.not_for(spare), *over})
            if call is None:
                break
            spare = table.spare(call.most_tokens, call.samples)
            if not spare or not self._send(call, spare, commands):
                break

    def _is_over(self, restriction: Restriction) -> bool:
        """Return whether no worker has room for such background calls beside its other calls."""
        rooms = self.background_rooms(restriction)
        return not any(room.may_fit(restriction.size, restriction.samples) for room in rooms)

    def background_rooms(self, restriction: Restriction) -> Iterator[BackgroundRoom]:
        """Yield the rooms for background calls of the workers that can take calls."""
        return self._worker_table.background_rooms(self._able(restriction))

    def _send(self, call: Call, workers: WorkerSet, commands: list[ev.Command]) -> bool:
        """Dispatch a call to one of these workers; return whether the router found one."""
        live = self._queued[call.call_id]
        if self._restricted and (restriction := call.restriction) is not UNRESTRICTED:
            workers = self.candidates(workers, restriction)
        worker_id = self._router.select(call, workers)
        if worker_id is None:
            return False
        commands.append(self._dispatch(live, self._worker_table.workers[worker_id]))
        return True

    def not_for(self, workers: WorkerSet) -> Collection[Restriction]:
        """Return the restrictions of the queued calls that none of these workers can take.

        These calls are skipped until another worker opens, and keep their place in the feeder.
        O(different restrictions).
        """
        if not self._restricted:
            return frozenset()
        return {each for each in self._restricted if not self.candidates(workers, each)}

    def _able(self, restriction: Restriction) -> int:
        """Return the mask of the workers that can serve calls with this restriction."""
        mask = self._worker_table.able(restriction.kinds) if restriction.kinds else -1
        names = restriction.workers
        return mask & self._locality.workers.mask(names) if names else mask

    def candidates(self, workers: WorkerSet, restriction: Restriction) -> WorkerSet:
        """Return the workers among these that can take a call with this restriction.

        Their kind can serve the call, it is not restricted to others, and it has not failed there,
        unless it has failed at all such workers.
        """
        if not (restriction.kinds or restriction.workers or restriction.avoid):
            return workers
        able, numbers = self._able(restriction), workers.workers
        workers = WorkerSet(numbers, workers.mask & able)
        serving = WorkerSet(numbers, self._worker_table.serving.mask & able)
        avoid = restriction.avoid
        return workers.without(avoid) if serving.without(avoid) else workers

    def _dispatch(self, live: QueuedCall, worker: Worker) -> ev.Admit:
        call = live.call
        self._leave(live)
        self.backlog.sent_tokens += live.demand_tokens
        live.cached_tokens, _ = self._locality.match(call, worker.bit)
        held = self.gate is not None and self.gate.holds(call)
        live.charge_factor = self._feeder.dispatch(call.call_id, live.cached_tokens)
        self._router.dispatched(call, worker.worker_id, live.charge_factor)
        if self.gate is not None:
            self.gate.dispatch(call, worker.worker_id)  # before the call matches itself
        self._locality.placed(call, worker.worker_id)
        live.worker_id, live.epoch, live.started = worker.worker_id, worker.epoch, False
        live.demand_tokens = call.prompt_tokens - live.cached_tokens + call.expected_output_tokens
        if call.background:
            worker.background.add(call.most_tokens, call.samples)
        else:
            self._worker_table.add_demand(worker, live.demand_tokens, call.samples)
            waiting_tokens = call.prompt_tokens + call.expected_output_tokens
            self._worker_table.add_waiting(worker, waiting_tokens)
        worker.calls += 1
        weight = 1.0 / live.charge_factor
        client = client_id(call.client)
        return ev.Admit(call.call_id, worker.worker_id, weight, call.stage, client, held)

    def restore(self, lives: Iterable[QueuedCall]) -> None:
        """Replace the queued calls; the feeder is restored apart."""
        self._queued, self.places, self._restricted = {}, QueuePlaces(), Counter()
        self.demand_tokens = 0
        for live in lives:
            if live.worker_id is None:
                self._count(live)
