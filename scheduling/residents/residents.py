"""Residents: the runs that may hold memory at the workers of one model.

A run keeps its prefix in the KV cache of a worker between its calls. While the prefixes of all runs
in progress do not fit into the caches, each call evicts the prefix of another run's next call, and
every prompt is computed anew. So a run becomes a resident with its first call, and only where its
footprint fits: the prompts of its calls at the worker, or of its last call, with their expected outputs,
and its expected growth until it ends (:mod:`fairserve.scheduling.residents.forecast`). What the prompts
at a worker share counts once. What all residents of a worker are expected to need together stays below a
share of its capacity; the rest is for the prefixes of runs that have ended, which a worker evicts in the
order of their last use.

A resident without a call keeps its place for a lease: twice the longest recent pause between two
calls of its app's runs, at most ``LONGEST_LEASE_S``, and less if its run is expected to have ended.
Leases end only where another run needs the room (:mod:`fairserve.scheduling.residents.gate`). Each
that ends so shortens the next ones of its app, and a run that returns afterwards lengthens them: so runs
whose clients never return hold memory for ever shorter times, without a signal from anybody.

Cost: O(log tokens) for each method, except :meth:`Residents.overdue` and :meth:`Residents.lose`,
O(residents).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, ClientPath
from fairserve.scheduling.fairness.level_weights import Owner
from fairserve.scheduling.residents.forecast import Forecast
from fairserve.scheduling.residents.held_prefixes import HeldPrefixes, Prefix

SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 60.0
"""Bounds of a lease; an app whose pauses are unknown has the longest."""
_PAUSES_OF_LEASE = 2.0
_UNKNOWN_PAUSE_S = LONGEST_LEASE_S / _PAUSES_OF_LEASE
_PAUSE_DECAY = 0.985
"""Factor by which an app's longest pause decreases with each later pause."""
_OVERRUN_DECAY = 0.8
"""Factor by which it decreases with each lease that ends before a return."""


class Footprint(NamedTuple):
    """Memory that a run needs at the worker of one of its calls."""

    prefix: Prefix
    """The call's prompt, and what is reserved for its output."""
    growth: int
    """Tokens by which it is expected to grow until the run's last call."""
    further_calls: float
    """Calls that are expected of the run after this one."""


@dataclass(slots=True)
class Resident:
    """A run that may hold memory; changed by its :class:`Residents` only."""

    run_id: str
    owner: Owner
    client: ClientPath
    worker_id: str
    growth: int = 0
    further_calls: float = 0.0
    keeps_its_place: bool = True
    """False if it is longer than usual for its app, or of one call, which has nothing to keep."""
    calls: dict[str, Prefix] = field(default_factory=dict)
    """Prefixes of the calls at the worker."""
    last: Prefix | None = None
    """Prefix of the last call, while none is at the worker."""
    ends_s: float = 0.0
    """Expected end, as of its last call."""
    idle_since_s: float = 0.0
    """Time of the last end of a call."""
    continues: float = 1.0
    """Number of further calls that its app's profile expects, at most 1."""

    @property
    def prefixes(self) -> list[Prefix]:
        """Return what the run holds."""
        return list(self.calls.values()) if self.last is None else [self.last]

    @property
    def mean_growth(self) -> int:
        """Return by how much it is larger in the mean until its end."""
        return self.growth // 2

    @property
    def app(self) -> str:
        """Return the run's app."""
        return self.owner[1]


@dataclass(slots=True)
class _Pauses:
    """Pauses of one app's runs, in seconds."""

    longest_s: float = 0.0
    """Longest recent one."""
    assumed_s: float = _UNKNOWN_PAUSE_S
    """Assumed to be possible, since a few short pauses are no evidence."""

    def decay(self, factor: float) -> None:
        self.longest_s *= factor
        self.assumed_s *= factor


@dataclass(slots=True)
class _Revoked:
    """A run that has lost its place, until its next call is dispatched."""

    app: str
    since_s: float
    """Time of its last activity."""
    overran: bool
    """True if it had overrun its lease."""


@dataclass(slots=True)
class _Memory:
    """Memory of one worker."""

    capacity_tokens: int
    prefixes: HeldPrefixes
    forecast: Forecast = field(default_factory=Forecast)
    residents: dict[str, Resident] = field(default_factory=dict)
    """Residents by run, in the order of their arrival here."""

    @property
    def tokens(self) -> int:
        return math.ceil(self.forecast.most(self.prefixes.tokens))

    def count(self, found: Resident) -> None:
        """Count what a resident holds and will hold."""
        tokens = 0
        for prefix in found.prefixes:
            self.prefixes.add(prefix)
            tokens += prefix.tokens
        self.forecast.count(1, tokens, found.growth, found.further_calls)

    def discount(self, found: Resident) -> None:
        """Undo :meth:`count`, before the resident changes."""
        tokens = 0
        for prefix in found.prefixes:
            self.prefixes.remove(prefix)
            tokens += prefix.tokens
        self.forecast.count(-1, tokens, found.growth, found.further_calls)

    def tokens_with(self, footprint: Footprint) -> float:
        """Return what ``tokens`` would be with another run."""
        prefix, growth, further_calls = footprint
        self.forecast.count(1, prefix.tokens, growth, further_calls)
        tokens = self.forecast.most(self.prefixes.tokens + self.prefixes.would_add(prefix))
        self.forecast.count(-1, prefix.tokens, growth, further_calls)
        return tokens


class Residents:
    """Residents by run. ``share`` is the part of a worker's capacity for footprints."""

    def __init__(self, share: float, block_tokens: int) -> None:
        self._share, self._block_tokens = share, block_tokens
        self._runs: dict[str, Resident] = {}
        self._memory: dict[str, _Memory] = {}
        """Memory by worker."""
        self.changes = 0
        """Number of changes of what residents hold or will hold; read-only."""
        self.largest_tokens = 0
        """Capacity of the largest worker; 0 without workers."""
        self._pauses: dict[str, _Pauses] = {}
        """Pauses by app."""
        self._revoked: dict[str, _Revoked] = {}

    def __len__(self) -> int:
        """Return the number of residents."""
        return len(self._runs)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._runs

    def get(self, run_id: str) -> Resident | None:
        """Return a resident; None if the run is none."""
        return self._runs.get(run_id)

    def all(self) -> Iterator[Resident]:
        """Yield each resident."""
        yield from self._runs.values()

    @property
    def tokens(self) -> int:
        """Return what all residents are expected to need at most, in tokens. O(workers)."""
        return sum(each.tokens for each in self._memory.values())

    def held_tokens(self, worker_id: str) -> int:
        """Return what the residents of a worker are expected to need together at most, in tokens."""
        return self._memory[worker_id].tokens

    def prompt_tokens(self, worker_id: str) -> int:
        """Return the tokens of the prompts of a worker's residents now; shared ones count once."""
        return self._memory[worker_id].prefixes.tokens

    def excess_tokens(self, worker_id: str) -> int:
        """Return by how much the runs at a worker hold more than its cache now."""
        return self.prompt_tokens(worker_id) - self._memory[worker_id].capacity_tokens

    def fits(self, worker_id: str, footprint: Footprint) -> bool:
        """Return whether a footprint fits a worker."""
        there = self._memory[worker_id].residents
        return not there or self.missing_tokens(worker_id, footprint) <= 0

    def missing_tokens(self, worker_id: str, footprint: Footprint) -> float:
        """Return the tokens that must leave a worker before a footprint fits; at most 0 if it does.

        A worker without residents takes any run. One that keeps nothing, as no further call is expected
        of it, may use all of the cache.
        """
        memory = self._memory[worker_id]
        share = self._share if footprint.further_calls else 1.0
        missing = memory.tokens_with(footprint) - share * memory.capacity_tokens
        return missing if memory.residents else min(0.0, missing)

    def added_tokens(self, worker_id: str, footprint: Footprint) -> float:
        """Return by how much a footprint would increase the tokens needed at a worker."""
        memory = self._memory[worker_id]
        return memory.tokens_with(footprint) - memory.tokens

    def missing_without(
        self, worker_id: str, footprint: Footprint, order: Sequence[Resident]
    ) -> tuple[int, float]:
        """Return how many of these residents must leave a worker before a footprint fits, in this order.

        And what is missing then; more than 0 if it does not fit without all of them either.
        """
        memory, number = self._memory[worker_id], 0
        missing = self.missing_tokens(worker_id, footprint)
        while missing > 0 and number < len(order):
            memory.discount(order[number])
            number += 1
            missing = self.missing_tokens(worker_id, footprint)
            if number == len(memory.residents):  # a worker without residents takes any run
                missing = min(0.0, missing)
        for each in order[:number]:
            memory.count(each)
        return number, missing

    def tokens_of(self, found: Resident) -> int:
        """Return the tokens of a resident's prompts; what they share counts once."""
        prefixes = HeldPrefixes(self._block_tokens)
        for each in found.prefixes:
            prefixes.add(each)
        return prefixes.tokens

    def join(self, worker_id: str, capacity_tokens: int) -> None:
        """Add a worker without residents."""
        self.changes += 1
        self._memory[worker_id] = _Memory(capacity_tokens, HeldPrefixes(self._block_tokens))
        self.largest_tokens = max(self.largest_tokens, capacity_tokens)

    def lose(self, worker_id: str) -> None:
        """Remove a worker with its residents, whose runs continue elsewhere."""
        self.changes += 1
        lost = self._memory.pop(worker_id)
        self.largest_tokens = max(
            (each.capacity_tokens for each in self._memory.values()), default=0
        )
        for run_id in lost.residents:
            del self._runs[run_id]

    # --- calls ------------------------------------------------------------------------------------

    def resume(self, call: Call, now_s: float) -> None:
        """Note the first queued call of a run after a pause."""
        run_id = call.interaction_id
        revoked, found = self._revoked.get(run_id), self._runs.get(run_id)
        if revoked is not None:
            since_s, revoked.since_s = revoked.since_s, now_s
        elif found is not None and not found.calls:
            since_s = found.idle_since_s
        else:
            return
        pauses = self._pauses.setdefault(call.app, _Pauses())
        pauses.decay(_PAUSE_DECAY)
        pauses.longest_s = max(now_s - since_s, pauses.longest_s)

    def dispatch(self, call: Call, worker_id: str, footprint: Footprint, ends_s: float) -> None:
        """Note a call's worker. Its run becomes a resident there, or moves there.

        It is expected to end at ``ends_s``.
        """
        self._revoked.pop(call.interaction_id, None)
        found = self._runs.get(call.interaction_id)
        if found is None:
            owner = call.tenant, call.app, call.user
            found = Resident(call.interaction_id, owner, call.client, worker_id)
        elif found.worker_id != worker_id:
            self._remove(found)
            found.worker_id = worker_id
        else:
            self._memory[worker_id].discount(found)
        found.ends_s, found.client = ends_s, call.client
        found.growth, found.further_calls = footprint.growth, footprint.further_calls
        found.keeps_its_place = bool(call.run_depth if call.stage > 1 else footprint.further_calls)
        found.calls.setdefault(call.call_id, footprint.prefix)
        found.last = None
        self._add(found)

    def leave(self, call: Call, now_s: float) -> None:
        """Note that a call has left its worker."""
        found = self._runs.get(call.interaction_id)
        if found is None or call.call_id not in found.calls:
            if call.interaction_id in self._revoked:
                self._revoked[call.interaction_id].since_s = now_s
            return
        found.idle_since_s = now_s
        found.continues = min(1.0, call.remaining_calls - 1.0)
        self.changes += 1
        if len(found.calls) == 1:  # it holds the same as before
            found.last = found.calls.pop(call.call_id)
            return
        memory = self._memory[found.worker_id]
        memory.discount(found)
        del found.calls[call.call_id]
        memory.count(found)

    def end(self, run_id: str) -> None:
        """Forget a run."""
        self._revoked.pop(run_id, None)
        found = self._runs.get(run_id)
        if found is not None:
            self._remove(found)

    def revoke(self, run_id: str, now_s: float, *, overran: bool) -> None:
        """Take a resident's place, either since it ``overran`` its lease or for another run."""
        found = self._runs[run_id]
        self.end(run_id)
        since_s = now_s if found.calls else found.idle_since_s
        self._revoked[run_id] = _Revoked(found.app, since_s, overran)
        if overran:
            self.shorten(found.app)

    def was_revoked(self, run_id: str, now_s: float, *, waits: bool) -> bool:
        """Return whether a run has lost its place to another and not overrun a lease since.

        A run with a call that ``waits`` overruns none.
        """
        found = self._revoked.get(run_id)
        if found is None or found.overran:
            return False
        return waits or now_s - found.since_s <= self.lease_s(found.app)

    def _add(self, found: Resident) -> None:
        self.changes += 1
        memory = self._memory[found.worker_id]
        self._runs[found.run_id] = memory.residents[found.run_id] = found
        memory.count(found)

    def _remove(self, found: Resident) -> None:
        self.changes += 1
        memory = self._memory[found.worker_id]
        del self._runs[found.run_id], memory.residents[found.run_id]
        memory.discount(found)

    def idle_tokens(self, found: Resident) -> int:
        """Return what a resident holds besides the prompts of its calls at the worker."""
        return found.mean_growth + (0 if found.last is None else found.last.tokens)

    def at(self, worker_id: str) -> list[Resident]:
        """Return the residents of a worker, in the order of their arrival there."""
        return list(self._memory[worker_id].residents.values())

    # --- leases -----------------------------------------------------------------------------------

    def shorten(self, app: str) -> None:
        """Shorten the next leases of an app, whose runs held memory for nothing."""
        self._pauses.setdefault(app, _Pauses()).decay(_OVERRUN_DECAY)

    def pause_s(self, app: str) -> float:
        """Return the longest recent pause of an app's runs."""
        pauses = self._pauses.get(app) or _Pauses()
        return max(pauses.longest_s, pauses.assumed_s)

    def awaited_pause_s(self, app: str) -> float:
        """Return how long a worker waits for runs of an app without a call; 0 before its first pause."""
        pauses = self._pauses.get(app)
        return 0.0 if pauses is None else pauses.longest_s / _PAUSES_OF_LEASE

    def lease_s(self, app: str, continues: float = 1.0) -> float:
        """Return how long a resident of an app keeps its place without a call."""
        longest_s = continues * self.pause_s(app)
        return min(max(_PAUSES_OF_LEASE * longest_s, SHORTEST_LEASE_S), LONGEST_LEASE_S)

    def is_overdue(self, found: Resident, now_s: float) -> bool:
        """Return whether a resident without a call at its worker has overrun its lease."""
        idle_s = now_s - found.idle_since_s
        if found.calls or idle_s <= SHORTEST_LEASE_S:
            return False
        return idle_s > self.lease_s(found.app, found.continues)

    def overdue(self, now_s: float) -> list[str]:
        """Return the runs that have overrun their lease, the one idle longest first."""
        found = [
            (each.idle_since_s, run_id)
            for run_id, each in self._runs.items()
            if self.is_overdue(each, now_s)
        ]
        return [run_id for _, run_id in sorted(found)]

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "runs": [
                {
                    "run": run_id,
                    "owner": list(each.owner),
                    "client": list(each.client),
                    "worker": each.worker_id,
                    "growth": each.growth,
                    "further": each.further_calls,
                    "keeps": each.keeps_its_place,
                    "calls": [[call_id, *_plain(prefix)] for call_id, prefix in each.calls.items()],
                    "last": None if each.last is None else _plain(each.last),
                    "ends": age_of(each.ends_s, now_s),
                    "idle": age_of(each.idle_since_s, now_s),
                    "continues": each.continues,
                }
                for run_id, each in self._runs.items()
            ],
            "capacity": {name: each.capacity_tokens for name, each in self._memory.items()},
            "pauses": {app: [each.longest_s, each.assumed_s] for app, each in self._pauses.items()},
            "revoked": {
                run_id: [each.app, age_of(each.since_s, now_s), each.overran]
                for run_id, each in self._revoked.items()
            },
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._pauses = {app: _Pauses(*plain) for app, plain in state["pauses"].items()}
        self._memory, self._runs = {}, {}
        self._revoked = {
            run_id: _Revoked(app, time_of(age, now_s), overran)
            for run_id, (app, age, overran) in state["revoked"].items()
        }
        for worker_id, tokens in state["capacity"].items():
            self.join(worker_id, tokens)
        for each in state["runs"]:
            found = Resident(
                each["run"],
                tuple(each["owner"]),
                tuple(each["client"]),
                each["worker"],
                each["growth"],
                each["further"],
                each["keeps"],
                {call_id: self._prefix(*prefix) for call_id, *prefix in each["calls"]},
                None if each["last"] is None else self._prefix(*each["last"]),
                time_of(each["ends"], now_s),
                time_of(each["idle"], now_s),
                each["continues"],
            )
            self._add(found)

    def _prefix(self, keys: list[int], depth: int, rest: int) -> Prefix:
        return Prefix(tuple(keys), depth, rest, depth * self._block_tokens + rest)


def _plain(prefix: Prefix) -> tuple[list[int], int, int]:
    return list(prefix.keys), prefix.depth, prefix.rest
