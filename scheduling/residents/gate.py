"""The gate in front of the workers' memory: which call is next, and which run may begin with it.

    1. The call of a run for which a worker is reserved, once it fits there.
    2. A call of a run that has begun. In its tenant it does not wait for runs that have not, except for
       what other runs of its client have had (:mod:`fairserve.scheduling.feeders.active_runs`).
    3. The call that is next in the feeder's order begins its run, at a worker where the run's
       footprint fits. If there is none, the run is *held*.

So a run that has begun is carried to its end, and the fair order decides which runs begin. Of the
workers with room, a run begins where the feeder finds the longest match for one of them.

A call that is expected to be the last of its run keeps nothing. Beside others like it, it needs no
place: a worker starts them in turn, and no prefix is lost. Beside prefixes that are kept it may use
all of the cache, and while such a run is held no more than a run that keeps.

Smaller runs pass a held one, by classes of size, two for each doubling: a class waits while its first
run is held. The run that was next in the fair order gets room (:meth:`RunGate.tick`). First from
residents that have overrun their lease. Then from those of the clients that are ahead of its own by more
calls than it is expected to make, the farthest first. After ``PASS_S`` only from those who would still
hold more memory than its own client, at a worker where their places are enough; after ``hold_s`` from
all who are ahead. That worker is reserved: no other run begins there. Before ``hold_s`` a run that has
room and waits for compute gets none. A running call is not interrupted; the next calls of a suspended
run wait in the fair order again. Their prompts have to be computed again, so before ``hold_s`` they are
at most ``SWAP_SHARE`` of the prompts served while runs were held.

Memory costs service: while a run is held for lack of it, clients are charged for what they hold without
a call, half of what calls of that size would cost if they followed each other without a pause. So who
keeps places that he does not use, or reserves more than he uses, falls back in the fair order.

Bound: one run at a time is held by name until it begins. So of the clients with runs that wait, the
one that is behind all others by more than a run begins one at the latest after two times ``hold_s``, a
tick, and the time in which those runs leave a reserved worker whose clients are not as far ahead.

Cost: the feeder's, for each class of size with a held run and each worker without room, plus O(open
workers) when a run begins.
Weakness: a run that began at another model, or before a restart, does not wait for room here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, ClientPath, Restriction, size_class
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness.level_weights import Owner, weights_by_level
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.workers import WorkerSet
from fairserve.scheduling.residents.held_prefixes import prefix_of
from fairserve.scheduling.residents.pace import Pace
from fairserve.scheduling.residents.residents import Footprint, Resident, Residents

RESERVED_GROWTH = 0.5
"""Part of a run's expected growth that is reserved from its beginning, if its profile is believed."""
IDLE_PRICE = 0.5
"""Charge for memory that is held without a call, relative to calls without a pause."""
PASS_S = 5.0
"""Seconds for which smaller runs pass a held one that others owe a place."""
SWAP_SHARE = 0.05
"""Part of the prompts served while a run is held that suspended runs may have to compute again."""
_SMALL = 1 / 32
"""Part of the largest worker below which runs have no class of size."""
_CLASSES = 2
"""Classes of size for each doubling."""
_AHEAD = 1.0
"""Typical calls by which a client must be ahead of another at least to lose a place to it."""


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
        feeder.runs_first = True
        self._directory = directory
        self._locality = locality
        self._candidates = candidates
        self._hold_s = hold_s
        self.residents = Residents(share, locality.block_tokens)
        self._held: _Held | None = None
        """The run that was next in the fair order when it was first held."""
        self._pace = Pace()
        self._credit = 0.0
        """Tokens of suspended runs that may be computed again, from the work since runs are held."""
        self.full = False
        """True if no worker had room for it at the last tick; read-only."""

    def next(
        self, open_workers: WorkerSet, excluded: Collection[Restriction]
    ) -> tuple[Call, WorkerSet] | tuple[None, None]:
        """Return the next call and the workers that may get it; (None, None) if none may."""
        held = self._held
        if held is not None and held.worker_id is not None:
            room = self._room(held.call, open_workers)
            if room:
                return self._feeder.choose(held.call, excluded), room
        passed: set[Restriction] = set()
        workers, matched = open_workers, self._locality.matched_tokens
        while (call := self._feeder.peek(workers, excluded, passed)) is not None:
            if self._feeder.has_begun(call.interaction_id):
                return call, open_workers
            room = self._room(call, workers)
            if not room:
                passed.add(call.restriction)
                workers = open_workers
            elif room.mask == workers.mask or matched(call, room) == matched(call, workers):
                return call, room
            else:  # the others may hold the prefix of another call
                workers = room
        return None, None

    def _room(self, call: Call, workers: WorkerSet) -> WorkerSet:
        """Return those of the workers that can take a call and that its run fits."""
        workers = self._candidates(workers, call.restriction)
        if call.interaction_id in self.residents:
            return workers
        held = self._held
        if held is not None and held.worker_id is not None and held.call is not call:
            workers = workers.without((held.worker_id,))
        footprint, keeps = self._footprint(call), self._is_tight() or not _keeps_nothing(call)
        fit = [each for each in workers if self.residents.fits(each, footprint, keeps=keeps)]
        return WorkerSet(workers.workers, workers.workers.mask(fit))

    def _is_tight(self) -> bool:
        """Return whether a run that keeps its prefix is held for want of memory."""
        return self.full and self._held is not None and not _keeps_nothing(self._held.call)

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
        if not self._feeder.waits(call.interaction_id):
            self.residents.resume(call, now_s)

    def unqueue(self, call: Call) -> None:
        """Note that a queued call ends without a worker."""
        self._no_longer_held(call)

    def has_place(self, run_id: str, now_s: float) -> bool:
        """Return whether a run is a resident within its lease."""
        return run_id in self.residents and not self._is_overdue(run_id, now_s)

    def _is_overdue(self, run_id: str, now_s: float) -> bool:
        return not self._feeder.waits(run_id) and self.residents.is_overdue(run_id, now_s)

    def dispatch(self, call: Call, worker_id: str) -> None:
        """Note a call's worker."""
        if self.full:
            self._credit += SWAP_SHARE * call.prompt_tokens
        else:
            self._credit = 0.0
        keeps = not _keeps_nothing(call)
        self.residents.dispatch(call, worker_id, self._footprint(call), keeps=keeps)
        self._pace.running += 1
        self._no_longer_held(call)

    def leave(self, call: Call, now_s: float) -> None:
        """Note that a call has left its worker."""
        self.residents.leave(call, now_s)
        self._pace.leave()

    def _no_longer_held(self, call: Call) -> None:
        if self._held is not None and self._held.call.interaction_id == call.interaction_id:
            self._held = None

    def holds(self, call: Call) -> bool:
        """Return whether a queued call waits for memory."""
        return self.full and not self._feeder.has_begun(call.interaction_id)

    @property
    def held_calls(self) -> int:
        """Return the number of queued calls that wait for memory."""
        return self._feeder.not_begun if self.full else 0

    # --- turns ------------------------------------------------------------------------------------

    def tick(self, workers: WorkerSet, excluded: Collection[Restriction], now_s: float) -> None:
        """Take places from residents for the run that is next to begin. O(residents) while one is held.

        ``workers`` are all that take calls, ``excluded`` the restrictions that none of them can serve.
        """
        passed_s = self._pace.pass_to(now_s)
        self.full = False
        if self._held is None:
            call = self._feeder.peek_fair(workers, excluded)
            if call is None or self._feeder.has_begun(call.interaction_id):
                return
            self._held = _Held(call, now_s)
        held = self._held
        for run_id in self.residents.overdue(now_s):
            if self._room(held.call, workers):
                break
            if not self._feeder.waits(run_id):
                self._suspend(run_id, now_s)
        self.full = not self._room(held.call, workers)
        if self.full:
            self._charge_idle(passed_s)
        if now_s - held.since_s >= PASS_S:
            self._reserve(held, self._candidates(workers, held.call.restriction), now_s)

    def _charge_idle(self, passed_s: float) -> None:
        """Charge all for the memory that they hold without a call."""
        calls = IDLE_PRICE * passed_s * self._pace.calls_per_s
        for run_id, each in self.residents.all():
            waits = self._feeder.waits(run_id)
            tokens = each.growth if waits else self.residents.idle_tokens(each)
            if tokens:
                self._feeder.charge_idle(each.owner, each.client, each.stage, calls * tokens)

    def _reserve(self, held: _Held, workers: WorkerSet, now_s: float) -> None:
        """Reserve the worker with the most room for a run, and take places there for it."""
        worker_id = held.worker_id
        if worker_id not in workers:
            worker_id = max(workers, key=self.residents.room_tokens, default=None)
        if worker_id is None:
            self._held = held._replace(worker_id=None)
            return
        footprint = self._footprint(held.call)
        needed = self.residents.missing_tokens(worker_id, footprint)
        waits_for_memory = needed > 0
        chosen, cost = [], 0
        late = now_s - held.since_s >= self._hold_s
        for _, run_id, each in self._debtors(held.call, worker_id, footprint.growth, of_all=late):
            if needed <= 0:
                break
            held_tokens = self.residents.tokens_of(each)
            needed -= held_tokens + each.growth
            cost += held_tokens
            chosen.append(run_id)
        reserved = late or (needed <= 0 if waits_for_memory else worker_id == held.worker_id)
        self._held = held._replace(worker_id=worker_id if reserved else None)
        if needed > 0 or not (late or cost <= self._credit):
            return
        self._credit = max(0.0, self._credit - cost)
        for run_id in chosen:
            self._suspend(run_id, now_s)

    def _debtors(
        self, call: Call, worker_id: str, growth: int, *, of_all: bool
    ) -> list[tuple[float, str, Resident]]:
        """Return the residents at a worker that owe their place to a call's run, the farthest first.

        Where their paths part, their client is ahead of the call's by more calls than its run is
        expected to make, and, if not ``of_all``, holds more memory for its weight than the call's
        would with this run.
        """
        there = [
            (run_id, each) for run_id, each in self.residents.all() if each.worker_id == worker_id
        ]
        memory: Counter[ClientPath] = Counter()
        for _, each in there:
            tokens = self.residents.tokens_of(each) + each.growth
            for length in range(1, len(each.client) + 1):
                memory[each.client[:length]] += tokens
        own_tokens = call.prompt_tokens + call.expected_output_tokens + growth
        least = max(_AHEAD, call.remaining_calls)
        found = []
        for run_id, each in there:
            length = _parting(each.client, call.client)
            if not length:
                continue
            theirs, own = each.client[:length], call.client[:length]
            lead = self._feeder.counter(theirs) - self._feeder.counter(own)
            weight = self._weight(each.owner, len(each.client), length)
            own_weight = self._weight((call.tenant, call.app, call.user), len(call.client), length)
            more = memory[theirs] / weight > (memory[own] + own_tokens) / own_weight
            if lead > least and (more or of_all):
                found.append((lead, run_id, each))
        return sorted(found, key=lambda each: each[:2], reverse=True)

    def _weight(self, owner: Owner, levels: int, length: int) -> float:
        """Return an owner's weight at the level at which a path has this length."""
        return weights_by_level(self._directory.weights(*owner), levels)[length - 1]

    def _suspend(self, run_id: str, now_s: float) -> None:
        """Take a run's place; its next calls wait in the fair order."""
        paused = not self._feeder.waits(run_id) and self.residents.is_idle(run_id)
        self.residents.suspend(run_id, now_s, paused=paused)
        self._feeder.suspend(run_id)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        held = self._held
        return {
            "residents": self.residents.snapshot(now_s),
            "pace": self._pace.snapshot(now_s),
            "full": self.full,
            "credit": self._credit,
            "held": None
            if held is None
            else [held.call.call_id, age_of(held.since_s, now_s), held.worker_id],
        }

    def restore(self, state: dict[str, Any], calls: Mapping[str, Call], now_s: float) -> None:
        """Replace the state by an earlier snapshot; ``calls`` are the pool's, by id."""
        self.residents.restore(state["residents"], now_s)
        self._pace.restore(state["pace"], now_s)
        self.full, self._credit = state["full"], state["credit"]
        self._held = None
        if state["held"] is not None:
            call_id, age, worker_id = state["held"]
            self._held = _Held(calls[call_id], time_of(age, now_s), worker_id)


def _keeps_nothing(call: Call) -> bool:
    """Return whether a call is expected to be the last of its run, which needs no place then."""
    return call.remaining_calls <= 1.0


def _parting(client: ClientPath, other: ClientPath) -> int:
    """Return the number of levels up to the first at which two paths differ; 0 if none does."""
    for length, (one, two) in enumerate(zip(client, other, strict=False), 1):
        if one != two:
            return length
    return 0
