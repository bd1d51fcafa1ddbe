"""Groups calls into interactions and follows each interaction through its life.

A run is *open* once a client names it, *under way* once one of its calls was accepted, and ends
*complete*, *cancelled*, *aborted* or *expired* (FairServe 3.4 and 4.2: what matters to throttling is
whether a call belongs to an interaction under way). A call's stage is 1 + the longest path from a
root; where the caller names no parents, the calls that have already ended are taken as its parents.
Attaching is O(parents). State per live call is one integer; ended runs are remembered for a bounded
number of runs so that a late reuse of their id is told from a new run.

Weakness: without declared parents a call that merely follows another in time counts as its child.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fairserve.interactions.call import Call
from fairserve.interactions.profile import AppProfile

RunState = Literal["open", "under_way", "complete", "cancelled", "aborted", "expired"]
WasteCause = Literal["", "throttled", "cancelled", "failed", "expired"]


class InteractionError(ValueError):
    """A call or a request does not fit its interaction; nothing was changed."""


class UnknownParentError(InteractionError):
    """A parent is not a call of this interaction."""


class CycleError(InteractionError):
    """The call would depend on itself."""


class DuplicateCallError(InteractionError):
    """The interaction has a call of this id already."""


class InteractionClosedError(InteractionError):
    """The interaction has ended."""


class InteractionNotFoundError(InteractionError):
    """There is no such interaction."""


class ForeignInteractionError(InteractionError):
    """The interaction belongs to another user or app."""


class TrackerFullError(InteractionError):
    """Too many interactions, or calls in one of them, are live."""


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of the tracker's memory."""

    live_runs: int = 200_000
    calls_per_run: int = 10_000
    remembered_runs: int = 20_000
    """Ended runs whose ids are still known."""


class Attachment(NamedTuple):
    """Where a call stands in its interaction."""

    stage: int
    under_way: bool
    immune: bool
    """Under way and within the immunity budget: it must not be throttled by load."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """An interaction that has ended. Its tokens are wasted unless it is complete."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    state: RunState
    calls: int
    tokens: int
    wasted_tokens: int
    cause: WasteCause


@dataclass(slots=True)
class Run:
    """A live interaction."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    opened_s: float
    last_active_s: float
    single: bool = False
    stages: dict[str, int] = field(default_factory=dict)
    """Stage of every accepted call; the call is live while its id is in ``live``."""
    live: set[str] = field(default_factory=set)
    ended_stage: int = 0
    """Highest stage among calls that have ended."""
    tokens: int = 0
    trouble: WasteCause = ""
    """Why the run would have failed if it ended now."""
    closing: RunState | None = None
    """It ends with this state as soon as its last live call has ended."""
    closing_final: str | None = None
    """The call whose end completes the run."""
    watched: bool = False
    """It has an entry in the expiry heap."""

    @property
    def state(self) -> RunState:
        """Open or under way; a run that has ended is not kept."""
        return "under_way" if self.stages else "open"


class Tracker:
    """All live interactions. ``now_s`` is monotonic seconds, given by the caller."""

    def __init__(self, limits: TrackerLimits = TrackerLimits(), immunity_factor: float = 4.0):
        if not immunity_factor > 0:
            raise ValueError(f"immunity_factor is {immunity_factor}; allowed: over 0")
        self._limits = limits
        self._immunity_factor = immunity_factor
        self._runs: dict[str, Run] = {}
        self._ended: OrderedDict[str, RunState] = OrderedDict()
        self._expiry: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Number of live interactions."""
        return len(self._runs)

    def get(self, interaction_id: str) -> Run | None:
        """A live run, to be read only."""
        return self._runs.get(interaction_id)

    # --- the life of a run ------------------------------------------------------------------------

    def open(self, interaction_id: str, owner: tuple[str, str, str], now_s: float) -> None:
        """Open an empty run of ``(tenant, app, user)``. Raises if the id was used before."""
        if interaction_id in self._runs:
            raise DuplicateCallError(f"interaction {interaction_id!r} exists already")
        self._require_not_ended(interaction_id)
        self._new_run(interaction_id, owner, now_s)

    def attach(self, call: Call, profile: AppProfile) -> Attachment:
        """Where the call would stand. Checks everything, changes nothing. Raises InteractionError."""
        run = self._runs.get(call.interaction_id)
        parents = call.parents
        if parents is not None and call.call_id in parents:
            raise CycleError(f"call {call.call_id!r} names itself as its parent")
        if run is None:
            self._require_not_ended(call.interaction_id)
            if parents:
                raise UnknownParentError(f"parent {parents[0]!r} is not a call of this interaction")
            if len(self._runs) >= self._limits.live_runs:
                raise TrackerFullError(f"{self._limits.live_runs} interactions are live already")
            return Attachment(stage=1, under_way=False, immune=False)
        if (run.tenant, run.app, run.user) != (call.tenant, call.app, call.user):
            raise ForeignInteractionError(
                f"interaction {call.interaction_id!r} belongs to another user"
            )
        if call.call_id in run.stages:
            raise DuplicateCallError(f"the interaction has a call {call.call_id!r} already")
        if run.closing is not None:
            raise InteractionClosedError(f"interaction {call.interaction_id!r} is closed")
        if len(run.stages) >= self._limits.calls_per_run:
            raise TrackerFullError(f"the interaction has {len(run.stages)} calls, the most allowed")
        if parents is None:
            stage = 1 + run.ended_stage
        else:
            unknown = [parent for parent in parents if parent not in run.stages]
            if unknown:
                raise UnknownParentError(f"parent {unknown[0]!r} is not a call of this interaction")
            stage = 1 + max((run.stages[parent] for parent in parents), default=0)
        under_way = bool(run.stages)
        return Attachment(stage, under_way, under_way and self._within_budget(run, profile))

    def _within_budget(self, run: Run, profile: AppProfile) -> bool:
        """ALGORITHMS 4: immunity ends at a multiple of the profile's calls or tokens."""
        factor = self._immunity_factor
        return (
            len(run.stages) < factor * profile.calls_per_interaction
            and run.tokens <= factor * profile.tokens_per_interaction
        )

    def accept(self, call: Call, now_s: float) -> None:
        """The call was admitted by the throttle; ``call.stage`` is set. Must follow ``attach``."""
        run = self._runs.get(call.interaction_id)
        if run is None:
            owner = (call.tenant, call.app, call.user)
            run = self._new_run(call.interaction_id, owner, now_s)
            run.single = call.single
        run.stages[call.call_id] = call.stage
        run.live.add(call.call_id)
        run.last_active_s = now_s
        if call.final:
            run.closing_final = call.call_id

    def refuse(self, call: Call, now_s: float) -> bool:
        """The call was refused. Returns whether this cut a run that was under way."""
        run = self._runs.get(call.interaction_id)
        if run is None:
            return False
        run.last_active_s = now_s
        if not run.stages:
            return False
        run.trouble = "throttled"
        return True

    def finish(
        self, call: Call, outcome: str, tokens: int, profile: AppProfile, now_s: float
    ) -> RunEnd | None:
        """An accepted call ended. ``outcome`` as in scheduling.events; ``tokens`` it used in all.

        Returns the end of the run if this ended it. Raises KeyError for a call that is not live.
        """
        run = self._runs[call.interaction_id]
        run.live.remove(call.call_id)
        run.ended_stage = max(run.ended_stage, run.stages[call.call_id])
        run.tokens += tokens
        run.last_active_s = now_s
        if run.closing is not None:
            pass  # what ended it came before: calls that are cancelled with their run are no cause
        elif outcome == "completed":
            run.trouble = ""
        else:
            run.trouble = "failed" if outcome == "failed" else _cause(outcome)
        if run.single or run.closing_final == call.call_id:
            run.closing = "complete" if outcome == "completed" else _state(outcome)
        if run.live:
            return None
        if run.closing is not None:
            return self._end(run, run.closing)
        self._watch(run, now_s + profile.idle_timeout_s)
        return None

    def close(self, interaction_id: str, *, cancel: bool) -> tuple[RunEnd | None, list[str]]:
        """The client ends a run: complete, or cancelled. Live calls are finished first.

        Returns its end, if no call was live, and the ids of the live calls (which the caller
        cancels if ``cancel``). Raises InteractionNotFoundError or InteractionClosedError.
        """
        run = self._runs.get(interaction_id)
        if run is None:
            self._require_not_ended(interaction_id)
            raise InteractionNotFoundError(f"there is no interaction {interaction_id!r}")
        state: RunState = "complete"
        if cancel:
            state = "aborted" if run.trouble in ("throttled", "failed") else "cancelled"
        run.closing = state
        if run.live:
            return None, sorted(run.live)
        return self._end(run, state), []

    def expire(self, profile_of: Callable[[str], AppProfile], now_s: float) -> list[RunEnd]:
        """End the runs that were idle for their app's time-out. O(ended * log live)."""
        due: list[tuple[float, str]] = []
        while self._expiry and self._expiry[0][0] <= now_s:
            _, interaction_id = heapq.heappop(self._expiry)
            run = self._runs.get(interaction_id)
            if run is None or not run.watched:
                continue
            run.watched = False
            if run.live:
                continue  # watched again when its last call ends
            due_s = run.last_active_s + profile_of(run.app).idle_timeout_s
            if due_s > now_s:
                self._watch(run, due_s)
            else:
                due.append((due_s, interaction_id))
        return [self._expire(self._runs[interaction_id]) for _, interaction_id in sorted(due)]

    def _expire(self, run: Run) -> RunEnd:
        return self._end(run, "aborted" if run.trouble else "expired")

    # --- parts ------------------------------------------------------------------------------------

    def _new_run(self, interaction_id: str, owner: tuple[str, str, str], now_s: float) -> Run:
        if len(self._runs) >= self._limits.live_runs:
            raise TrackerFullError(f"{self._limits.live_runs} interactions are live already")
        tenant, app, user = owner
        run = Run(interaction_id, tenant, app, user, opened_s=now_s, last_active_s=now_s)
        self._runs[interaction_id] = run
        self._watch(run, now_s)  # the first look sets the time of the next
        return run

    def _watch(self, run: Run, due_s: float) -> None:
        if not run.watched:
            run.watched = True
            heapq.heappush(self._expiry, (due_s, run.interaction_id))

    def _require_not_ended(self, interaction_id: str) -> None:
        if interaction_id in self._ended:
            state = self._ended[interaction_id]
            raise InteractionClosedError(f"interaction {interaction_id!r} has ended ({state})")

    def _end(self, run: Run, state: RunState) -> RunEnd:
        del self._runs[run.interaction_id]
        self._ended[run.interaction_id] = state
        while len(self._ended) > self._limits.remembered_runs:
            self._ended.popitem(last=False)
        cause: WasteCause = ""
        if state != "complete":
            cause = run.trouble or _cause(state)
        return RunEnd(
            interaction_id=run.interaction_id,
            tenant=run.tenant,
            app=run.app,
            user=run.user,
            state=state,
            calls=len(run.stages),
            tokens=run.tokens,
            wasted_tokens=0 if state == "complete" else run.tokens,
            cause=cause,
        )

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """State as plain JSON values; ages, not times."""
        return {
            "runs": [
                {
                    "id": run.interaction_id,
                    "owner": [run.tenant, run.app, run.user],
                    "opened_age_s": now_s - run.opened_s,
                    "idle_age_s": now_s - run.last_active_s,
                    "single": run.single,
                    "stages": dict(run.stages),
                    "live": sorted(run.live),
                    "ended_stage": run.ended_stage,
                    "tokens": run.tokens,
                    "trouble": run.trouble,
                    "closing": run.closing,
                    "closing_final": run.closing_final,
                }
                for run in self._runs.values()
            ],
            "ended": list(self._ended.items()),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._runs = {}
        self._expiry = []
        self._ended = OrderedDict((key, value) for key, value in state["ended"])
        for plain in state["runs"]:
            tenant, app, user = plain["owner"]
            run = Run(
                plain["id"],
                tenant,
                app,
                user,
                opened_s=now_s - plain["opened_age_s"],
                last_active_s=now_s - plain["idle_age_s"],
                single=plain["single"],
                stages=dict(plain["stages"]),
                live=set(plain["live"]),
                ended_stage=plain["ended_stage"],
                tokens=plain["tokens"],
                trouble=plain["trouble"],
                closing=plain["closing"],
                closing_final=plain["closing_final"],
            )
            self._runs[run.interaction_id] = run
            self._watch(run, run.last_active_s)


def _cause(outcome: str) -> WasteCause:
    causes: dict[str, WasteCause] = {
        "refused": "throttled",
        "cancelled": "cancelled",
        "expired": "expired",
        "failed": "failed",
        "aborted": "failed",
    }
    return causes[outcome]


def _state(outcome: str) -> RunState:
    states: dict[str, RunState] = {
        "cancelled": "cancelled",
        "expired": "expired",
        "failed": "aborted",
        "refused": "aborted",
    }
    return states[outcome]
