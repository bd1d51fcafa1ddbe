"""Residents: the runs that may hold memory at the workers of one model.

A run keeps its prefix in the KV cache of a worker between its calls. While the prefixes of all runs
in progress do not fit into the caches, each call evicts the prefix of another run's next call, and
every prompt is computed anew. So a run becomes a resident with its first call, and only where its
footprint fits: the tokens of its last call and a part of its expected growth, since at any time
residents are at different stages. The footprints at a worker stay below a share of its capacity; the
rest is for the prefixes of runs that have ended, which a worker evicts in the order of their last use.

A resident without a call keeps its place for the lease of its app: twice the longest recent pause
between two calls of the app's runs, at most ``LONGEST_LEASE_S``. Leases end only where another run
needs the room (:mod:`fairserve.scheduling.residents.gate`).

Cost: O(1) for each method, except :meth:`Residents.overdue` and :meth:`Residents.lose`, O(residents).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, ClientPath
from fairserve.interactions.profiles.profile import AppProfile

RESERVED_GROWTH = 0.5
"""Part of a run's expected growth that is reserved from its beginning."""
SHORTEST_LEASE_S, LONGEST_LEASE_S = 1.0, 60.0
"""Bounds of a lease; an app whose pauses are unknown has the longest."""
_PAUSES_OF_LEASE = 2.0
_PAUSE_DECAY = 0.95
"""Factor by which an app's longest pause decreases with each later pause."""


def footprint(call: Call, profile: AppProfile) -> float:
    """Return the tokens to reserve for the run of a call."""
    now = call.prompt_tokens + call.expected_output_tokens
    last = profile.stage(call.stage + round(call.remaining_calls) - 1).total_tokens
    return now + RESERVED_GROWTH * max(0.0, last - now)


@dataclass(slots=True)
class Resident:
    """A run that may hold memory; changed by its :class:`Residents` only."""

    app: str
    client: ClientPath
    worker_id: str
    tokens: float
    """Footprint."""
    queued: int = 0
    """Queued calls of the run."""
    running: int = 0
    """Calls of the run that have a worker."""
    idle_since_s: float = 0.0
    """Time of the last end of a call."""


class Residents:
    """Residents by run. ``share`` is the part of a worker's capacity for footprints."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._runs: dict[str, Resident] = {}
        self._held: dict[str, float] = {}
        """Sum of the footprints at each worker."""
        self._capacity: dict[str, int] = {}
        """KV capacity of each worker, in tokens."""
        self._pauses: dict[str, float] = {}
        """Longest recent pause of each app's runs, in seconds."""

    def __len__(self) -> int:
        """Return the number of residents."""
        return len(self._runs)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._runs

    def all(self) -> Iterator[tuple[str, Resident]]:
        """Yield each resident with its run's id."""
        yield from self._runs.items()

    def fits(self, worker_id: str, tokens: float) -> bool:
        """Return whether a footprint fits a worker. One without residents takes any run."""
        held = self._held[worker_id]
        return not held or held + tokens <= self._share * self._capacity[worker_id]

    def join(self, worker_id: str, capacity_tokens: int) -> None:
        """Add a worker without residents."""
        self._held[worker_id], self._capacity[worker_id] = 0.0, capacity_tokens

    def lose(self, worker_id: str) -> None:
        """Remove a worker with its residents, whose runs continue elsewhere."""
        del self._held[worker_id], self._capacity[worker_id]
        self._runs = {
            run_id: each for run_id, each in self._runs.items() if each.worker_id != worker_id
        }

    # --- calls ------------------------------------------------------------------------------------

    def queue(self, call: Call, tokens: float, now_s: float) -> None:
        """Note a queued call; the footprint of its run is this from now on."""
        found = self._runs.get(call.interaction_id)
        if found is None:
            return
        if not found.queued and not found.running:
            longest_s = _PAUSE_DECAY * self._pauses.get(call.app, 0.0)
            self._pauses[call.app] = max(now_s - found.idle_since_s, longest_s)
        found.queued += 1
        self._held[found.worker_id] += tokens - found.tokens
        found.tokens = tokens

    def unqueue(self, call: Call) -> None:
        """Note that a queued call ends without a worker."""
        found = self._runs.get(call.interaction_id)
        if found is not None and found.queued:
            found.queued -= 1

    def dispatch(self, call: Call, worker_id: str, tokens: float) -> None:
        """Note a call's worker. Its run becomes a resident there, or moves there."""
        found = self._runs.get(call.interaction_id)
        if found is None:
            found = Resident(call.app, call.client, worker_id, tokens)
            self._runs[call.interaction_id] = found
            self._held[worker_id] += tokens
        elif found.worker_id != worker_id:
            self._held[found.worker_id] -= found.tokens
            self._held[worker_id] += found.tokens
            found.worker_id = worker_id
        found.queued = max(0, found.queued - 1)
        found.running += 1

    def leave(self, call: Call, now_s: float) -> None:
        """Note that a call has left its worker."""
        found = self._runs.get(call.interaction_id)
        if found is not None and found.running:
            found.running -= 1
            found.idle_since_s = now_s

    def end(self, run_id: str) -> None:
        """Remove a run, if it is a resident."""
        found = self._runs.pop(run_id, None)
        if found is not None:
            self._held[found.worker_id] -= found.tokens

    # --- leases -----------------------------------------------------------------------------------

    def lease_s(self, app: str) -> float:
        """Return how long a resident of an app keeps its place without a call."""
        longest_s = self._pauses.get(app, LONGEST_LEASE_S)
        return min(max(_PAUSES_OF_LEASE * longest_s, SHORTEST_LEASE_S), LONGEST_LEASE_S)

    def overdue(self, now_s: float) -> list[str]:
        """Return the runs that have overrun their lease, the one idle longest first."""
        found = [
            (each.idle_since_s, run_id)
            for run_id, each in self._runs.items()
            if not each.queued
            and not each.running
            and now_s - each.idle_since_s > self.lease_s(each.app)
        ]
        return [run_id for _, run_id in sorted(found)]

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "runs": [
                [
                    *(run_id, each.app, list(each.client), each.worker_id, each.tokens),
                    *(each.queued, each.running, age_of(each.idle_since_s, now_s)),
                ]
                for run_id, each in self._runs.items()
            ],
            "held": dict(self._held),
            "capacity": dict(self._capacity),
            "pauses": dict(self._pauses),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._held, self._capacity = dict(state["held"]), dict(state["capacity"])
        self._pauses = dict(state["pauses"])
        self._runs = {
            run_id: Resident(
                *(app, tuple(client), worker_id, tokens, queued, running, time_of(age, now_s))
            )
            for run_id, app, client, worker_id, tokens, queued, running, age in state["runs"]
        }
