"""The gate in front of the workers' memory: which call is next, and which run may begin with it.

    1. The call of a run for which a worker is reserved, once it fits there.
    2. A call of a run that has begun and holds its place, the least served client's first.
    3. Without one, the call that is next in the feeder's order begins its run, at a worker where the
       run's footprint fits. If there is none, the run is *held*; smaller ones pass it.

So a run that has begun is carried to its end, and the fair order decides which runs begin. Runs pass
by classes of size, two for each doubling: a class waits while its first run is held.

While a run is held, residents lose their places (:meth:`RunGate.tick`). First those that have overrun
their lease. After ``hold_s`` of the run that was next in the fair order, one worker is reserved for
it: no other run begins there, and those of the clients that are ahead of its own lose their places
there, the farthest first, until it fits. Their calls wait in the fair order again. A running call is
not interrupted.

Memory costs service: while a run is held for lack of it, clients are charged for what they hold without
a call, half of what calls of that size would cost if they followed each other without a pause. So who
keeps places that he does not use, or reserves more than he uses, falls back in the fair order.

Bound: one run at a time is held by name until it begins. So of the clients with runs that wait, the
one that is behind all others begins a run at the latest after two times ``hold_s``, a tick, and the time
in which those runs leave a reserved worker whose clients are not ahead of the held run's.

Cost: the feeder's, for each class of size with a held run, plus O(open workers) when a run begins.
Weakness: a run that began at another model, or before a restart, does not wait for room here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, Restriction, size_class
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.workers import WorkerSet
from fairserve.scheduling.residents.held_prefixes import prefix_of
from fairserve.scheduling.residents.pace import Pace
from fairserve.scheduling.residents.residents import Footprint, Residents

RESERVED_GROWTH = 0.5
"""Part of a run's expected growth that is reserved from its beginning, if its profile is believed."""
IDLE_PRICE = 0.5
"""Charge for memory that is held without a call, relative to calls without a pause."""
_SMALL = 1 / 32
"""Part of the largest worker below which runs have no class of size."""
_CLASSES = 2
"""Classes of size for each doubling."""
_AHEAD = 1.0
"""Typical calls by which a client must be ahead of another to lose a place to it."""


Candidates = Callable[[WorkerSet, Restriction], WorkerSet]
"""Returns the workers among some that can take a call with a restriction."""


class _Held(NamedTuple):
    call: Call
    """The call with which the run begins."""
    since_s: float
    worker_id: str | None = None
    """Worker that is reserved for it."""


class RunGate:
    """Belongs to one model."""

    def __init__(
        self,
        feeder: WscFeeder,
        directory: Directory,
        locality: Locality,
        candidates: Candidates,
        share: float,
        hold_s: float,
    ) -> None:
        self._feeder = feeder
        self._directory = directory
        self._locality = locality
        self._candidates = candidates
        self._hold_s = hold_s
        self.residents = Residents(share, locality.block_tokens)
        self._held: _Held | None = None
        """The run that was next in the fair order when it was first held."""
        self._pace = Pace()
        self._full = False
        """True if no worker had room for it at the last tick."""

    def next(
        self, open_workers: WorkerSet, excluded: Collection[Restriction]
    ) -> tuple[Call, WorkerSet] | tuple[None, None]:
        """Return the next call and the workers that may get it; (None, None) if none may."""
        held = self._held
        if held is not None and held.worker_id is not None:
            room = self._room(held.call, open_workers)
            if room:
                return self._feeder.choose(held.call, excluded), room
        call = self._feeder.peek_begun(open_workers, excluded)
        if call is not None:
            return call, open_workers
        passed = set(excluded)
        while (call := self._feeder.peek(open_workers, passed)) is not None:
            room = self._room(call, open_workers)
            if room:
                return call, room
            if not call.size:
                break
            passed.add(call.restriction)
        return None, None

    def _room(self, call: Call, workers: WorkerSet) -> WorkerSet:
        """Return those of the workers that can take a call and that its run fits."""
        workers = self._candidates(workers, call.restriction)
        if call.interaction_id in self.residents:
            return workers
        held = self._held
        if held is not None and held.worker_id is not None and held.call is not call:
            workers = workers.without((held.worker_id,))
        footprint = self._footprint(call)
        fit = [each for each in workers if self.residents.fits(each, footprint)]
        return WorkerSet(workers.workers, workers.workers.mask(fit))

    def _footprint(self, call: Call) -> Footprint:
        tokens = call.prompt_tokens + call.expected_output_tokens
        keys = self._locality.keys(call.call_id)
        return Footprint(
            prefix_of(keys, self._locality.block_tokens, tokens), self._growth(call, tokens)
        )

    def _growth(self, call: Call, tokens: int) -> int:
        last = call.stage + round(call.remaining_calls) - 1
        profile = self._directory.profile(call.app)
        expected = profile.believed(last, profile.stage(last).total_tokens)
        return int(RESERVED_GROWTH * max(0.0, expected - tokens))

    # --- calls and runs ---------------------------------------------------------------------------

    def queue(self, call: Call, now_s: float) -> None:
        """Note an admitted call, before it enters the feeder: sets its class of size."""
        tokens = call.prompt_tokens + call.expected_output_tokens
        tokens += self._growth(call, tokens)
        large = tokens > _SMALL * self.residents.largest_tokens
        call.size = size_class(tokens, _CLASSES) if large else 0
        self.residents.queue(call, self._footprint(call), now_s)

    def unqueue(self, call: Call) -> None:
        """Note that a queued call ends without a worker."""
        self.residents.unqueue(call)
        self._no_longer_held(call)

    def dispatch(self, call: Call, worker_id: str) -> None:
        """Note a call's worker."""
        self.residents.dispatch(call, worker_id, self._footprint(call))
        self._pace.running += 1
        self._no_longer_held(call)

    def leave(self, call: Call, now_s: float) -> None:
        """Note that a call has left its worker."""
        self.residents.leave(call, now_s)
        self._pace.leave()

    def _no_longer_held(self, call: Call) -> None:
        if self._held is not None and self._held.call.interaction_id == call.interaction_id:
            self._held = None

    @property
    def held_calls(self) -> int:
        """Return the number of queued calls that wait for memory."""
        return self._feeder.not_begun if self._full else 0

    # --- turns ------------------------------------------------------------------------------------

    def tick(self, workers: WorkerSet, excluded: Collection[Restriction], now_s: float) -> None:
        """Take places from residents for the run that is next to begin. O(residents) while one is held.

        ``workers`` are all that take calls, ``excluded`` the restrictions that none of them can serve.
        """
        passed_s = self._pace.pass_to(now_s)
        self._full = False
        if self._held is None:
            call = self._feeder.peek(workers, excluded)
            if call is None or self._feeder.has_begun(call.interaction_id):
                return
            self._held = _Held(call, now_s)
        held = self._held
        for run_id in self.residents.overdue(now_s):
            if self._room(held.call, workers):
                break
            self._suspend(run_id)
        self._full = not self._room(held.call, workers)
        if self._full:
            self._charge_idle(passed_s)
        if now_s - held.since_s >= self._hold_s:
            self._reserve(held, self._candidates(workers, held.call.restriction))

    def _charge_idle(self, passed_s: float) -> None:
        """Charge all for the memory that they hold without a call."""
        calls = IDLE_PRICE * passed_s * self._pace.calls_per_s
        for _, each in self.residents.all():
            tokens = self.residents.idle_tokens(each)
            if tokens:
                self._feeder.charge_idle(each.owner, each.client, each.stage, calls * tokens)

    def _reserve(self, held: _Held, workers: WorkerSet) -> None:
        """Reserve the worker with the most room for a run, and take places there for it."""
        worker_id = held.worker_id
        if worker_id not in workers:
            worker_id = max(workers, key=self.residents.room_tokens, default=None)
            self._held = held._replace(worker_id=worker_id)
        if worker_id is None:
            return
        counter, footprint = self._feeder.counter, self._footprint(held.call)
        own = counter(held.call.client) + _AHEAD
        there = [
            (counter(each.client), run_id)
            for run_id, each in self.residents.all()
            if each.worker_id == worker_id
        ]
        for served, run_id in sorted(there, reverse=True):
            if served <= own or self.residents.fits(worker_id, footprint):
                break
            self._suspend(run_id)

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
            "pace": self._pace.snapshot(now_s),
            "held": None
            if held is None
            else [held.call.call_id, age_of(held.since_s, now_s), held.worker_id],
        }

    def restore(self, state: dict[str, Any], calls: Mapping[str, Call], now_s: float) -> None:
        """Replace the state by an earlier snapshot; ``calls`` are the pool's, by id."""
        self.residents.restore(state["residents"], now_s)
        self._pace.restore(state["pace"], now_s)
        self._held = None
        if state["held"] is not None:
            call_id, age, worker_id = state["held"]
            self._held = _Held(calls[call_id], time_of(age, now_s), worker_id)
