"""The gate in front of the workers' memory: which call is next, and which run may begin with it.

    1. A call of a run that has begun and holds its place, the least served client's first.
    2. Without one, the call that is next in the feeder's order begins its run, at a worker where the
       run's footprint fits. If there is none, it is *held*, and with it all runs behind it.

So a run that has begun is carried to its end, and the fair order decides which runs begin.

While a run is held, residents lose their places (:meth:`RunGate.tick`): first those that have overrun
their lease; and after ``hold_s`` the runs of the clients that are farthest over their share, as far as
they are ahead of the held run's client. Such a run's calls wait in the fair order again. A running
call is not interrupted.

Of two clients with runs that wait, the one that is behind by more than the slacks of WSC is next in the
fair order, and begins a run at the latest ``hold_s`` and a tick after that. Until then the other is
ahead by at most what its residents are served in that time and by their longest call.

Weakness: a run that began at another model, or before a restart, does not wait for room here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, Restriction
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.locality.workers import WorkerSet
from fairserve.scheduling.residents.residents import Residents, footprint

_AHEAD = 1.0
"""Typical calls by which a client must be ahead of another to lose a place to it."""


class _Held(NamedTuple):
    run_id: str
    since_s: float


class RunGate:
    """Belongs to one model. Cost: the feeder's, plus O(open workers) when a run begins."""

    def __init__(
        self,
        feeder: WscFeeder,
        directory: Directory,
        share: float,
        hold_s: float,
    ) -> None:
        self._feeder = feeder
        self._directory = directory
        self._hold_s = hold_s
        self.residents = Residents(share)
        self._held: _Held | None = None
        """The run that has been the next to begin at all ticks since this time."""

    def next(
        self, open_workers: WorkerSet, excluded: Collection[Restriction]
    ) -> tuple[Call, WorkerSet] | tuple[None, None]:
        """Return the next call and the workers that may get it; (None, None) if none may."""
        call = self._feeder.peek_begun(open_workers, excluded)
        if call is not None:
            return call, open_workers
        call = self._feeder.peek(open_workers, excluded)
        if call is None:
            return None, None
        room = self._room(call, open_workers)
        return (call, room) if room else (None, None)

    def _room(self, call: Call, workers: WorkerSet) -> WorkerSet:
        """Return those of the workers that the run of a call fits."""
        if call.interaction_id in self.residents:
            return workers
        tokens, mask = self._footprint(call), 0
        for worker_id in workers:
            if self.residents.fits(worker_id, tokens):
                mask |= 1 << workers.workers.slot(worker_id)
        return WorkerSet(workers.workers, mask)

    def _footprint(self, call: Call) -> float:
        return footprint(call, self._directory.profile(call.app))

    # --- calls and runs ---------------------------------------------------------------------------

    def queue(self, call: Call, now_s: float) -> None:
        """Note an admitted call."""
        self.residents.queue(call, self._footprint(call), now_s)

    def dispatch(self, call: Call, worker_id: str) -> None:
        """Note a call's worker."""
        self.residents.dispatch(call, worker_id, self._footprint(call))

    # --- turns ------------------------------------------------------------------------------------

    def tick(self, workers: WorkerSet, excluded: Collection[Restriction], now_s: float) -> None:
        """Take places from residents for the run that is next to begin. O(residents) while one is held.

        ``workers`` are all that take calls, ``excluded`` the restrictions that none of them can serve.
        """
        call = self._feeder.peek(workers, excluded)
        if call is None or self._feeder.has_begun(call.interaction_id):
            self._held = None
            return
        if self._held is None or self._held.run_id != call.interaction_id:
            self._held = _Held(call.interaction_id, now_s)
        for run_id in self.residents.overdue(now_s):
            if self._room(call, workers):
                return
            self._suspend(run_id)
        if now_s - self._held.since_s >= self._hold_s:
            self._replace(call, workers)

    def _replace(self, call: Call, workers: WorkerSet) -> None:
        """Begin a run in place of those of the clients that are farthest ahead of its client."""
        counter = self._feeder.counter
        own = counter(call.client)
        ahead = sorted(
            ((counter(each.client), run_id) for run_id, each in self.residents.all()), reverse=True
        )
        taken = False
        for served, run_id in ahead:
            if served <= own + _AHEAD or (taken and self._room(call, workers)):
                break
            self._suspend(run_id)
            taken = True
        if taken:
            self._feeder.begin(call.interaction_id)
            self._held = None

    def _suspend(self, run_id: str) -> None:
        """Take a run's place; its next calls wait in the fair order."""
        self.residents.end(run_id)
        self._feeder.suspend(run_id)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        held = self._held
        return {
            "residents": self.residents.snapshot(now_s),
            "held": None if held is None else [held.run_id, age_of(held.since_s, now_s)],
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self.residents.restore(state["residents"], now_s)
        held = state["held"]
        self._held = None if held is None else _Held(held[0], time_of(held[1], now_s))
