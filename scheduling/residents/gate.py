"""The gate in front of the workers' memory: which call is next, and which run may begin with it.

    1. A call of a run that has begun, at the worker of its run if that holds half of its prompt. In its
       tenant it does not wait for runs that have not, except for what other runs of its client have
       had (:mod:`fairserve.scheduling.feeders.active_runs`).
    2. The call that is next in the feeder's order begins its run, at a worker where the run's
       footprint fits. If there is none, the run is *held*. A run that lost its place begins again so.

So a run that has begun is carried to its end, and the fair order decides which runs begin. Of the
workers with room, a run begins where the feeder finds the longest match for one of them.

Others pass a held run if they do not delay it (EASY backfilling: Lifka, 1995). The residents of the
worker where least is missing for it have expected ends, so at some time enough of them have left. A
run may begin there if it is expected to end before, or if it fits beside the held one then. After
``hold_s`` no end is expected any more: those that are there longest leave first, and only what fits
beside the held run passes it.

The run that is next in the fair order also gets room (:meth:`RunGate.tick`). First from those idle
longest at a worker that has been without a call for half of the longest recent pause of their app, or
for the time of some calls. This shortens the leases of that app as overrun ones do. Then from residents
that have overrun their lease. Then, where their places are enough, from those of clients that are ahead
of its own by ``LEAD_CALLS`` for each worker, the farthest first; or by more calls than it is expected to
make, if the resident is longer than usual for its app, or a single call. A running call is not
interrupted. Each place lost costs a prompt that is computed again and a run in progress that waits, so a
small lead is left to the order of beginnings. A single call has nothing to lose: the call that gets its
place waits at the worker instead.

Memory costs service: while a run is held for lack of it, clients are charged for what they hold without
a call. As much as a mean prompt costs half of what calls cost that follow each other without a pause.
So who keeps places that he does not use, or reserves more than he uses, falls back in the fair order.
All pay the same for a token, so an app with large calls pays for all that it holds.

Bound: a client whose run waits, behind all others, gets a place at the latest when those runs at some
worker have ended that are not longer than usual, or when its clients are ahead by ``LEAD_CALLS`` for
each worker and a run, and their running calls have ended. That is after at most twice the time in which
the worker's memory serves so many calls. Proof. The run stays the next one: what its client has had does
not change, nobody arrives below that, and who passes it does not delay it. A resident leaves at its end,
at that of its lease, or for a lead, and until then its client pays for all that it holds.

Cost: the feeder's for each class of size that may not begin, which is asked once until a resident or a
window changes, and for each worker without room; plus O(open workers) when a run begins, and
O(residents) when another one is held.
Weakness: a run that began at another model, or before a restart, does not wait for room here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, ClientPath, Restriction, size_class
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.fairness.level_weights import Owner, weights_by_level
from fairserve.scheduling.feeders.wsc import WscFeeder
from fairserve.scheduling.locality.locality import Locality
from fairserve.scheduling.locality.workers import WorkerSet
from fairserve.scheduling.residents.held_prefixes import Prefix, prefix_of, prompt_prefix
from fairserve.scheduling.residents.pace import Pace
from fairserve.scheduling.residents.residents import Footprint, Resident, Residents

IDLE_PRICE = 0.5
"""Charge for memory of a mean prompt that is held without a call, relative to calls without a pause."""
STAYS_SHARE = 0.5
"""Part of its prompt that the worker of a call's run must hold for the call to go nowhere else."""
IDLE_AFTER_S, IDLE_CALLS = 2.0, 3.0
"""Seconds for which a worker is at least without a call before idle runs there lose places, and mean
times of a call for which it is at most: where calls are short, so are prompts to compute again."""
LEAD_CALLS = 200.0
"""Typical calls, for each worker, by which a client must be ahead of another to lose a place to it."""
_SMALL = 1 / 32
"""Part of the largest worker below which runs have no class of size."""
_LARGE_OUTPUT = 1 / 12
"""Part of the largest worker from which an output is reserved in full."""
_OUTPUT_PART = 0.5
"""Part of smaller outputs that is reserved, since calls are at different stages."""
_CLASSES = 2
"""Classes of size for each doubling."""


Candidates = Callable[[WorkerSet, Restriction], WorkerSet]
"""Returns the workers among some that can take a call with a restriction."""


class ServingWorkers(Protocol):
    """The pool's table of workers."""

    serving: WorkerSet
    """Workers that take calls."""


@dataclass(slots=True)
class _Held:
    call: Call
    """The call with which the run begins."""
    since_s: float
    worker_id: str
    """Worker that is expected to have room for it first."""
    room_s: float | None = None
    """Time at which that is expected; None if it has room, or nothing is expected any more."""
    spare_tokens: float = 0.0
    """Room beside it there, at that time."""

    def is_after(self, ends_s: float) -> bool:
        """Return whether a run that ends at this time leaves before there is room."""
        return self.room_s is not None and ends_s < self.room_s


@dataclass(slots=True)
class _Refused:
    """Classes of runs that may not begin, until a resident or a window changes, or time has passed."""

    at: tuple[int, int] | None = None
    """Mask of the open workers, and changes of the residents; None: not computed since a change."""
    classes: set[Restriction] = field(default_factory=set)
    head: _Held | None = None
    """The held run that they must not delay."""


class RunGate:
    """Belongs to one model."""

    def __init__(
        self,
        feeder: WscFeeder,
        directory: Directory,
        locality: Locality,
        candidates: Candidates,
        table: ServingWorkers,
        share: float,
        hold_s: float,
    ) -> None:
        self._feeder = feeder
        feeder.runs_first = True
        self._directory = directory
        self._locality = locality
        self._candidates, self._table = candidates, table
        self._hold_s = hold_s
        self.residents = Residents(share, locality.block_tokens)
        self._prompts: dict[str, Prefix] = {}
        """Prompts of queued calls whose footprints were asked for."""
        self._asked: tuple[Call, Footprint] | None = None
        """Call whose footprint was asked for last in this event; None at its beginning."""
        self._now_s = 0.0
        """Time of the last tick."""
        self._held: _Held | None = None
        """The run that was next in the order when it was first held."""
        self._refused = _Refused()
        self._pace = Pace()
        self.full = False
        """True if no worker had room for it at the last tick; read-only."""

    def next(
        self, open_workers: WorkerSet, excluded: Collection[Restriction]
    ) -> tuple[Call | None, WorkerSet]:
        """Return the next call and the workers that may get it; None if no call may be next."""
        self._asked = None
        refused, at = self._refused, (open_workers.mask, self.residents.changes)
        if refused.at != at:
            refused = self._refused = _Refused(at)
        workers, matched = open_workers, self._locality.matched_tokens
        while (call := self._feeder.peek(workers, excluded, refused.classes)) is not None:
            if self._feeder.has_begun(call.interaction_id):
                return call, self._worker_of(call) or open_workers
            room = self._room(call, workers, refused.head)
            if not room.mask and workers is not open_workers:
                workers = open_workers  # it may fit where the one before it does not
                if room := self._room(call, workers, refused.head):
                    return call, room
            if not room.mask:
                if refused.head is None:
                    refused.head = self._hold(call)
                refused.classes.add(call.restriction)
            elif room.mask == workers.mask or matched(call, room) == matched(call, workers):
                return call, room
            else:  # the others may hold the prefix of another call
                workers = room
        return None, open_workers

    def _worker_of(self, call: Call) -> WorkerSet:
        """Return the worker of a call's run if that holds enough of the prompt and can take the call.

        Its window may be full: elsewhere the prompt would have to be computed again.
        """
        found, serving = self.residents.get(call.interaction_id), self._table.serving
        own = 0 if found is None else serving.mask & serving.workers.mask((found.worker_id,))
        if own and self._locality.match(call, own)[0] >= STAYS_SHARE * call.prompt_tokens:
            return self._candidates(WorkerSet(serving.workers, own), call.restriction)
        return WorkerSet(serving.workers, 0)

    def _room(self, call: Call, workers: WorkerSet, head: _Held | None = None) -> WorkerSet:
        """Return those of the workers that can take a call and that its run fits, beside a held one."""
        workers = self._candidates(workers, call.restriction)
        if call.interaction_id in self.residents:
            return workers
        footprint = self._footprint(call)
        fit = [
            each
            for each in workers
            if self.residents.fits(each, footprint)
            and (head is None or self._may_pass(call, footprint, each, head))
        ]
        return WorkerSet(workers.workers, workers.workers.mask(fit))

    def _may_pass(self, call: Call, footprint: Footprint, worker_id: str, held: _Held) -> bool:
        """Return whether a run does not delay a held one at a worker."""
        if held.worker_id != worker_id:
            return True
        added = self.residents.added_tokens(worker_id, footprint)
        return added <= held.spare_tokens or held.is_after(self._ends_s(call))

    def _ends_s(self, call: Call) -> float:
        """Return the expected end of a call's run, if the call were dispatched now."""
        calls, pause_s = call.remaining_calls, self.residents.pause_s(call.app)
        busy_s = calls * self._pace.seconds(call.expected_output_tokens)
        return self._now_s + busy_s + (calls - 1.0) * pause_s

    def _hold(self, call: Call) -> _Held | None:
        """Hold the run of a call unless some worker has room; it is expected where least is missing."""
        held, serving = self._held, self._table.serving
        if held is not None and held.call is call and held.worker_id in serving:
            return held
        if call.interaction_id in self.residents:
            return None
        workers, footprint = self._candidates(serving, call.restriction), self._footprint(call)
        missing = {each: self.residents.missing_tokens(each, footprint) for each in workers}
        worker_id = min(missing, key=missing.__getitem__, default=None)
        if worker_id is None or missing[worker_id] <= 0:
            return None
        since_s = self._now_s if held is None else held.since_s
        self._held = _Held(call, since_s, worker_id)
        self._expect_room(self._held)
        return self._held

    def _expect_room(self, held: _Held) -> None:
        """Compute when a held run has room and what is left then, if the residents end when expected.

        After ``hold_s`` nothing is expected of them but that those who are there longest end first.
        """
        late = self._now_s - held.since_s >= self._hold_s
        held.room_s = None
        footprint = self._footprint(held.call)
        missing = self.residents.missing_tokens(held.worker_id, footprint)
        if missing > 0:
            there = self.residents.at(held.worker_id)
            if not late:
                there.sort(key=lambda each: each.ends_s)
            leave, missing = self.residents.missing_without(held.worker_id, footprint, there)
            held.room_s = None if late or missing > 0 else there[leave - 1].ends_s
        held.spare_tokens = max(0.0, -missing)

    def _footprint(self, call: Call) -> Footprint:
        if self._asked is not None and self._asked[0] is call:
            return self._asked[1]
        keys, block_tokens = self._locality.keys(call.call_id), self._locality.block_tokens
        prompt = self._prompts.get(call.call_id)
        if prompt is None:
            prompt = prompt_prefix(keys, block_tokens, call.prompt_tokens)
            self._prompts[call.call_id] = prompt
        matched_tokens, _ = self._locality.match(call, self._table.serving.mask)
        prefix = prefix_of(prompt, keys, block_tokens, self._output(call), matched_tokens)
        found = Footprint(prefix, self._growth(call), max(0.0, call.remaining_calls - 1.0))
        self._asked = call, found
        return found

    def _output(self, call: Call) -> int:
        """Return the tokens to reserve for a call's output."""
        small = call.expected_output_tokens < _LARGE_OUTPUT * self.residents.largest_tokens
        return int(call.expected_output_tokens * (_OUTPUT_PART if small else 1.0))

    def _growth(self, call: Call) -> int:
        """Return by how much a call's run is expected to grow until its last call, in tokens."""
        last = call.stage + round(call.remaining_calls) - 1
        profile = self._directory.profile(call.app)
        expected = profile.believed(last, profile.stage(last).total_tokens)
        more = expected - call.prompt_tokens - call.expected_output_tokens
        return max(0, int(more))

    # --- calls and runs ---------------------------------------------------------------------------

    def queue(self, call: Call, now_s: float) -> None:
        """Note an admitted call, before it enters the feeder: sets its class of size."""
        tokens = call.prompt_tokens + self._output(call) + self._growth(call)
        large = tokens > _SMALL * self.residents.largest_tokens
        call.size = size_class(tokens, _CLASSES) if large else 0
        if not self._feeder.waits(call.interaction_id):
            self.residents.resume(call, now_s)

    def unqueue(self, call: Call) -> None:
        """Note that a call is no longer queued, with a worker or without one."""
        self._prompts.pop(call.call_id, None)
        if self._held is not None and self._held.call.interaction_id == call.interaction_id:
            self._held, self._refused = None, _Refused()

    def has_place(self, run_id: str, now_s: float) -> bool:
        """Return whether a run is a resident within its lease, or lost its place to another.

        So is one that began at another model, before a restart, or at a worker that is lost.
        """
        waits = self._feeder.waits(run_id)
        if (found := self.residents.get(run_id)) is not None:
            return waits or not self.residents.is_overdue(found, now_s)
        revoked = self.residents.was_revoked(run_id, now_s, waits=waits)
        return revoked or self._feeder.has_begun(run_id)

    def dispatch(self, call: Call, worker_id: str) -> None:
        """Note a call's worker."""
        footprint, ends_s = self._footprint(call), self._ends_s(call)
        self._asked = None
        self.unqueue(call)
        held = self._held
        if held is not None and held.worker_id == worker_id and not held.is_after(ends_s):
            held.spare_tokens -= self.residents.added_tokens(worker_id, footprint)
        self.residents.dispatch(call, worker_id, footprint, ends_s)
        self._pace.running += 1

    def leave(self, call: Call, now_s: float) -> None:
        """Note that a call has left its worker."""
        self.residents.leave(call, now_s)
        self._pace.leave(call.prompt_tokens, call.expected_output_tokens)

    def holds(self, call: Call) -> bool:
        """Return whether a queued call waits for memory."""
        return self.full and not self._feeder.has_begun(call.interaction_id)

    @property
    def held_calls(self) -> int:
        """Return the number of queued calls that wait for memory."""
        return self._feeder.not_begun if self.full else 0

    # --- turns ------------------------------------------------------------------------------------

    def tick(self, workers: WorkerSet, excluded: Collection[Restriction], now_s: float) -> None:
        """Take places from residents that hold too much, and for the run that is next to begin.

        O(workers), and O(residents) while a run waits to begin.

        ``workers`` are all that take calls, ``excluded`` the restrictions that none of them can serve.
        """
        self._asked = None
        passed_s = self._pace.pass_to(now_s)
        self._now_s, self.full, self._refused = now_s, False, _Refused()
        self._shrink(workers)
        call = self._feeder.peek_fair(workers, excluded)
        if call is not None and not self._feeder.has_begun(call.interaction_id):
            self._hold(call)
            self._use_idle_worker(call, workers)
        held = self._held
        if held is None or held.worker_id not in workers:
            self._held = None
            return
        for run_id in self.residents.overdue(now_s):
            if self._room(held.call, workers):
                break
            if not self._feeder.waits(run_id):
                self._revoke(run_id, overran=True)
        self.full = not self._room(held.call, workers)
        if self.full:
            self._charge_idle(passed_s)
            self._take_places(held, workers)
        self._expect_room(held)

    def _use_idle_worker(self, call: Call, workers: WorkerSet) -> None:
        """Take the places of those idle longest at a worker that has been without a call for a while.

        The call may have room elsewhere, at a worker that gets no further calls for now.
        """
        footprint = self._footprint(call)
        missing = {
            each: self.residents.missing_tokens(each, footprint)
            for each in self._candidates(workers, call.restriction)
            if self._is_idle(each)
        }
        if not missing:
            return
        worker_id = min(missing, key=missing.__getitem__)
        for each in sorted(self.residents.at(worker_id), key=lambda each: each.idle_since_s):
            if self.residents.fits(worker_id, footprint) or self._feeder.waits(each.run_id):
                return
            self.residents.shorten(each.app)
            self._revoke(each.run_id, overran=False)

    def _is_idle(self, worker_id: str) -> bool:
        """Return whether a worker has been without a call for longer than its runs explain."""
        there = self.residents.at(worker_id)
        if not there or any(each.calls for each in there):
            return False
        longest = min(there, key=lambda each: each.idle_since_s)
        pause_s = self.residents.awaited_pause_s(longest.app)
        most_s = max(IDLE_AFTER_S, min(pause_s, IDLE_CALLS * self._pace.call_s))
        return self._now_s - max(each.idle_since_s for each in there) >= most_s

    def _shrink(self, workers: WorkerSet) -> None:
        """Take places while runs hold more than their worker's cache, and would evict each other.

        First that of who began last, of the client that holds the most for its weight.
        """
        for worker_id in workers:
            while self.residents.excess_tokens(worker_id) > 0:
                there = self.residents.at(worker_id)
                if len(there) == 1:
                    break
                memory = self._memory_by_client(there)
                shares = [self._shares(each, memory) for each in there]
                most = max(range(len(there)), key=lambda number: (shares[number], number))
                self._revoke(there[most].run_id, overran=False)

    def _charge_idle(self, passed_s: float) -> None:
        """Charge all for the memory that they hold without a call, at the same price for each token."""
        idle: Counter[tuple[Owner, ClientPath]] = Counter()
        for each in self.residents.all():
            waits = self._feeder.waits(each.run_id)
            tokens = each.mean_growth if waits else self.residents.idle_tokens(each)
            if tokens:
                idle[each.owner, each.client] += tokens
        calls = IDLE_PRICE * passed_s * self._pace.calls_per_token_s
        for (owner, client), tokens in idle.items():
            self._feeder.charge_idle(owner, client, calls * tokens)

    def _take_places(self, held: _Held, workers: WorkerSet) -> None:
        """Take places for a held run."""
        debtors = self._debtors(held.call, held.worker_id, LEAD_CALLS * len(workers))
        number, missing = self.residents.missing_without(
            held.worker_id, self._footprint(held.call), debtors
        )
        if missing <= 0:
            for each in debtors[:number]:
                self._revoke(each.run_id, overran=False)

    def _debtors(self, call: Call, worker_id: str, lead: float) -> list[Resident]:
        """Return the residents at a worker that owe their place to a call's run, the farthest first.

        Where their paths part, their client is ahead of the call's by more calls than its run is
        expected to make, and by more than ``lead`` if the resident keeps its place.
        """
        found = []
        leads: dict[ClientPath, float] = {}
        for each in self.residents.at(worker_id):
            if (ahead := leads.get(each.client)) is None:
                ahead = leads[each.client] = self._lead(each.client, call.client)
            least = lead if each.keeps_its_place else 0.0
            if ahead > max(least, call.remaining_calls):
                found.append((ahead, each.run_id, each))
        return [each for *_, each in sorted(found, reverse=True)]

    def _lead(self, client: ClientPath, other: ClientPath) -> float:
        """Return by how much a client is ahead of another where their paths part; 0 if nowhere."""
        for length, (one, two) in enumerate(zip(client, other, strict=False), 1):
            if one != two:
                return self._feeder.counter(client[:length]) - self._feeder.counter(other[:length])
        return 0.0

    def _memory_by_client(self, there: Collection[Resident]) -> Counter[ClientPath]:
        """Return the tokens that residents hold, by path of their clients at each level."""
        memory: Counter[ClientPath] = Counter()
        for each in there:
            tokens = self.residents.tokens_of(each) + each.mean_growth
            for length in range(1, len(each.client) + 1):
                memory[each.client[:length]] += tokens
        return memory

    def _shares(self, found: Resident, memory: Counter[ClientPath]) -> list[float]:
        """Return what a resident's client holds for its weight, at each level."""
        levels = len(found.client)
        weights = weights_by_level(self._directory.weights(*found.owner), levels)
        return [memory[found.client[:n]] / weight for n, weight in enumerate(weights, 1)]

    def _revoke(self, run_id: str, *, overran: bool) -> None:
        """Take a run's place; it has to begin again."""
        self.residents.revoke(run_id, self._now_s, overran=overran)
        self._feeder.revoke(run_id)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        held, refused = self._held, self._refused
        return {
            "residents": self.residents.snapshot(now_s),
            "pace": self._pace.snapshot(now_s),
            "full": self.full,
            "held": None
            if held is None
            else [
                held.call.call_id,
                age_of(held.since_s, now_s),
                held.worker_id,
                None if held.room_s is None else age_of(held.room_s, now_s),
                held.spare_tokens,
            ],
            "refused": None
            if refused.at is None or refused.at[1] != self.residents.changes
            else [
                refused.at[0],
                refused.head is not None,
                sorted([*map(sorted, each[:3]), *each[3:]] for each in refused.classes),
            ],
            "now": age_of(self._now_s, now_s),
        }

    def restore(self, state: dict[str, Any], calls: Mapping[str, Call], now_s: float) -> None:
        """Replace the state by an earlier snapshot; ``calls`` are the pool's, by id."""
        self.residents.restore(state["residents"], now_s)
        self._pace.restore(state["pace"], now_s)
        self.full, self._refused = state["full"], _Refused()
        self._now_s, self._held = time_of(state["now"], now_s), None
        if state["held"] is not None:
            call_id, age, worker_id, room, spare_tokens = state["held"]
            room_s = None if room is None else time_of(room, now_s)
            self._held = _Held(calls[call_id], time_of(age, now_s), worker_id, room_s, spare_tokens)
        if state["refused"] is not None:
            mask, is_held, classes = state["refused"]
            found = {
                Restriction(frozenset(kinds), frozenset(workers), frozenset(avoid), size, samples)
                for kinds, workers, avoid, size, samples in classes
            }
            head = self._held if is_held else None
            self._refused = _Refused((mask, self.residents.changes), found, head)
