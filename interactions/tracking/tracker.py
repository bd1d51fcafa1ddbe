"""Groups calls into interactions and tracks the life cycle of each interaction.

A run is *open* once a client names it, *active* once one of its calls was accepted, and ends
*complete*, *cancelled*, *aborted* or *expired* (FairServe 3.4 and 4.2: throttling depends on
whether a call belongs to an active interaction). Few clients declare the end of a run. A run that
was idle for its app's time-out is complete if its last call completed and nothing is missing; it is
expired if it never had a call, if its declared sink never arrived, or if its last answer requested
tools whose results never arrived. A late call within ``reopen_grace_s`` reopens a run that ended by
idling; a run closed by its client stays closed. A *declared* run belongs to a program, which the
platform executes: it accepts no other calls and has no time-out of its own.

A call whose client names no run may join one by its clues (:meth:`Tracker.join`,
:mod:`fairserve.interactions.run_rules`). Else it is a run of its own, which is complete with
its call; a call that continues its conversation within ``reopen_grace_s`` reopens it.

:mod:`fairserve.interactions.tracking.run` decides the place of a call in its run. Each operation is
O(1) in the number of runs, except for the heap of time-outs. All tables are bounded. A bounded
number of ended runs is remembered, so that late reuse of an id is not taken for a new run.

Weakness: a reopened run ends twice for its listeners; the later end replaces the earlier one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call
from fairserve.interactions.errors import (
    CycleError,
    DeclaredInteractionError,
    DuplicateCallError,
    ForeignInteractionError,
    InteractionClosedError,
    InteractionNotFoundError,
    OpenInteractionsError,
    TrackerFullError,
    UnknownParentError,
)
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.run_rules import Clue
from fairserve.interactions.tracking.conversation import last_answer
from fairserve.interactions.tracking.identity import client_call_id, core_call_id
from fairserve.interactions.tracking.immunity import ImmunityRule
from fairserve.interactions.tracking.run import Attachment, RestoredRun, Run, RunState, WasteCause
from fairserve.interactions.tracking.run_end import RunEnd, cause_of, state_of
from fairserve.interactions.tracking.run_index import RunIndex
from fairserve.interactions.tracking.shared_table import SharedTable

Owner = tuple[str, str, str]
"""Tenant, app and user."""
ANSWERS_PER_CALL = 16
"""Maximum samples of a call by which a later call finds its run."""


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of the tracker's memory."""

    live_runs: int = 200_000
    tenant_share: float = 1 / 4
    """Share of ``live_runs`` that one tenant may have."""
    user_share: float = 1 / 16
    """Share of ``live_runs`` that one user may have."""
    empty_idle_s: float = 60.0
    """Idle time in seconds after which an open run without a call expires."""
    calls_per_run: int = 10_000
    remembered_runs: int = 20_000
    """Number of ended runs whose ids are remembered."""
    dormant_runs: int = 20_000
    """Maximum runs that ended by idling and can still be reopened."""
    continuable_runs: int = 40_000
    """Maximum unnamed runs that ended with their call and can still be continued; ``tenant_share`` of
    them for one tenant."""
    index_entries: int = 200_000
    """Maximum names and answers by which calls find their runs; ``tenant_share`` of them for one
    tenant."""

    def __post_init__(self) -> None:
        for name in ("tenant_share", "user_share"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value}; allowed: over 0, to 1")
        if not self.empty_idle_s > 0:
            raise ValueError(f"empty_idle_s is {self.empty_idle_s}; allowed: over 0")

    def share(self, of: str) -> int:
        """Return the most live runs of one tenant (``tenant``) or one user (``user``); at least 1."""
        share = self.tenant_share if of == "tenant" else self.user_share
        return max(1, int(self.live_runs * share))


class Tracker:
    """Tracks all live interactions. ``now_s`` is the caller's monotonic time in seconds."""

    def __init__(
        self,
        limits: TrackerLimits = TrackerLimits(),
        immunity: ImmunityRule = ImmunityRule(),
        *,
        infer: bool = True,
        reopen_grace_s: float = 600.0,
    ) -> None:
        """With ``infer``, calls that name no parents are placed by their content and arrival."""
        if not reopen_grace_s >= 0:
            raise ValueError(f"reopen_grace_s is {reopen_grace_s}; allowed: 0 or more")
        self._limits = limits
        self.immunity = immunity
        self._infer = infer
        self._reopen_grace_s = reopen_grace_s
        self._runs: dict[str, Run] = {}
        self._live_of: Counter[tuple[str, ...]] = Counter()
        """Live runs by ``(tenant,)`` and by ``(tenant, user)``; keys without a run are removed."""
        self._ended: OrderedDict[str, RunState] = OrderedDict()
        self._dormant: OrderedDict[str, tuple[float, Run]] = OrderedDict()
        """Runs that ended by idling and the time until which they can be reopened, earliest first."""
        self._continuable: SharedTable[str, Run] = SharedTable(
            limits.continuable_runs, limits.tenant_share
        )
        """Unnamed runs that ended with their call."""
        self._index = RunIndex(limits.index_entries, limits.tenant_share)
        self._expiry: list[tuple[float, str]] = []

    def __len__(self) -> int:
        """Return the number of live interactions."""
        return len(self._runs)

    def get(self, interaction_id: str) -> Run | None:
        """Return a live run, read-only."""
        return self._runs.get(interaction_id)

    def find(self, interaction_id: str, tenant: str, now_s: float) -> Run | None:
        """Return a live run, or one that a call of its tenant would reopen; read-only."""
        run = self._runs.get(interaction_id)
        return self._reopenable(interaction_id, tenant, now_s) if run is None else run

    # --- the run of a call that names none --------------------------------------------------------

    def joinable(
        self, owner: Owner, clues: Sequence[Clue], answer: Sequence[int], now_s: float
    ) -> tuple[Run | None, str]:
        """Return the run that a call's clues name, if it takes the call, and the rule that named it.

        ``answer`` are the keys of the last answer that the call may continue. Without a run, the rule
        is the one whose name the call's own run gets, if any.
        """
        for clue in clues:
            found: str | None = clue.run_id
            if clue.name:
                found = self._index.named(owner, clue.name, now_s)
            elif clue.scope is not None:
                runs = (self._index.answered(owner, clue.scope, key, now_s) for key in answer)
                found = next((each for each in runs if each is not None), None)
            run = self.find(found, owner[0], now_s) if found else None
            if run is not None and self._takes(run, owner):
                return run, clue.rule
            if clue.name:
                return None, clue.rule
        return None, ""

    def join(self, call: Call, now_s: float) -> None:
        """Move a call whose client named no run to the run that its clues name, if there is one.

        The ids of the call and its parents follow. A call whose id that run has already stays alone.
        """
        owner = call.tenant, call.app, call.user
        answer = last_answer(call.history, call.answered_prompts)
        run, call.run_rule = self.joinable(owner, call.clues, answer, now_s)
        if run is None:
            return
        before, after = call.interaction_id, run.interaction_id
        call_id = core_call_id(after, client_call_id(before, call.call_id))
        if call_id in run:
            call.run_rule = ""
            return
        call.interaction_id, call.call_id = after, call_id
        if call.parents:
            call.parents = tuple(
                core_call_id(after, client_call_id(before, parent)) for parent in call.parents
            )

    def _takes(self, run: Run, owner: Owner) -> bool:
        """Return whether a run takes another call of this owner."""
        most = self._limits.calls_per_run
        return run.owner == owner and not run.declared and run.closing is None and len(run) < most

    def _enter_name(self, call: Call, now_s: float) -> None:
        """Give the run of an accepted call the name by which it was found, or is to be found."""
        owner = call.tenant, call.app, call.user
        for clue in call.clues:
            if clue.name and clue.rule == call.run_rule:
                self._index.name(owner, clue.name, call.interaction_id, now_s)

    def _enter_answers(self, call: Call, continuation_keys: Sequence[int], now_s: float) -> None:
        owner = call.tenant, call.app, call.user
        for answer in continuation_keys[: min(call.samples, ANSWERS_PER_CALL)]:
            for scope in call.answer_scopes:
                self._index.answer(owner, scope, answer, call.interaction_id, now_s)

    # --- life cycle of a run ----------------------------------------------------------------------

    def open(
        self,
        interaction_id: str,
        owner: Owner,
        now_s: float,
        sink: str | None = None,
        *,
        declared: bool = False,
    ) -> None:
        """Open an empty run; if ``sink`` is given, the run is complete when that call ends.

        Raises an InteractionError if the id was used before, or if too many runs are live.
        """
        self._require_new(interaction_id)
        self._require_room(owner)
        self._new_run(interaction_id, owner, now_s, declared=declared).closing_final = sink

    def restore_run(self, restored: RestoredRun, now_s: float) -> RunEnd | None:
        """Restore a run that was open before a restart.

        Returns its end if it waits for nothing: its client had closed it, or its sink has ended.
        Raises as :meth:`open` does, and if it has too many calls. Weakness: conversation keys are
        not restored, so the next call that names no parents is placed by time.
        """
        self._require_new(restored.interaction_id)
        if len(restored.calls) > self._limits.calls_per_run:
            raise self._too_many_calls(len(restored.calls))
        run = self._new_run(
            restored.interaction_id,
            restored.owner,
            now_s - restored.opened_age_s,
            declared=restored.declared,
        )
        for call in restored.calls:
            run.restore_call(call)
            if call.call_id == restored.sink:
                run.closing = _closing_state(call.outcome)
        run.last_active_s = now_s - restored.idle_age_s
        run.closing_final = restored.sink
        run.closing = restored.closing or run.closing
        last = restored.last_call
        if last is not None:
            run.trouble = _trouble(last.outcome)
            if restored.refused_age_s is not None and restored.refused_age_s <= last.ended_age_s:
                run.trouble = "throttled"
        return None if run.closing is None else self._end(run, run.closing)

    def attach(
        self, call: Call, profile: AppProfile, now_s: float, context_tokens: float = math.inf
    ) -> Attachment:
        """Return the place that the call would get. Changes nothing. Raises InteractionError.

        ``context_tokens`` is the maximum size of one call of the model.
        """
        interaction_id, parents = call.interaction_id, call.parents
        run = self._runs.get(interaction_id)
        if parents and call.call_id in parents:
            raise CycleError(f"call {call.call_id!r} names itself as its parent")
        if run is None:
            if call.declared:
                raise _not_found(interaction_id)
            run = self._reopenable(interaction_id, call.tenant, now_s)
            self._require_room((call.tenant, call.app, call.user))
            if run is None:
                self._require_not_ended(interaction_id)
                if parents:
                    raise _unknown(parents[0])
                return Attachment(1, under_way=False, immune=False)
        if run.user != call.user or run.app != call.app or run.tenant != call.tenant:
            raise ForeignInteractionError(f"interaction {interaction_id!r} belongs to another user")
        if run.declared and not call.declared:
            raise DeclaredInteractionError(
                f"interaction {interaction_id!r} is a program's: only its own calls belong to it"
            )
        numbers = run.numbers
        if call.call_id in numbers:
            raise DuplicateCallError(f"the interaction has a call {call.call_id!r} already")
        if run.closing is not None:
            raise InteractionClosedError(f"interaction {interaction_id!r} is closed")
        calls = len(numbers)
        if calls >= self._limits.calls_per_run:
            raise self._too_many_calls(calls)
        if parents is not None:
            try:
                follows = tuple([numbers[parent] for parent in parents])
            except KeyError as error:
                raise _unknown(error.args[0]) from None
        else:
            follows = run.inferred_parents(call) if self._infer else ()
        immune = self.immunity.holds(calls, run.tokens, profile, context_tokens)
        stage = run.stage_after(follows)
        return Attachment(stage, calls > 0, immune, follows, calls, run.tokens)

    def accept(self, call: Call, attachment: Attachment, now_s: float) -> bool:
        """Add a call that the throttle admitted, at the place returned by :meth:`attach`.

        Returns whether it reopened its run.
        """
        run = self._runs.get(call.interaction_id)
        reopened = False
        if run is None:
            run = self._reopen(call.interaction_id, call.tenant, now_s)
            reopened = run is not None
        if run is None:
            owner = call.tenant, call.app, call.user
            run = self._new_run(call.interaction_id, owner, now_s)
            run.single = call.single
        run.add(call.call_id, attachment.stage, attachment.parents)
        run.last_active_s = now_s
        if call.final:
            run.closing_final = call.call_id
        if call.clues:
            self._enter_name(call, now_s)
        return reopened

    def parent_ids(self, call: Call, attachment: Attachment) -> tuple[str, ...]:
        """Return the ids of the parents of an accepted call."""
        if call.parents is not None:
            return call.parents
        run = self._runs[call.interaction_id]
        return tuple(map(run.name, attachment.parents))

    def reject(self, call: Call, now_s: float) -> bool:
        """Record a rejected call; return whether its run was active."""
        run = self._runs.get(call.interaction_id)
        if run is None:
            return False
        run.last_active_s = now_s
        if not len(run):
            return False
        run.trouble = "throttled"
        return True

    def finish(
        self,
        call: Call,
        outcome: str,
        tokens: int,
        profile: AppProfile,
        now_s: float,
        *,
        continuation_keys: tuple[int, ...] = (),
        requested_tools: bool = False,
    ) -> RunEnd | None:
        """End an accepted call. ``outcome`` as in scheduling.events; ``tokens`` is the total used.

        ``continuation_keys`` are the keys of its answer; ``requested_tools`` is true if the answer
        requested tools. Returns the end of the run if the run ends, too. Raises KeyError if the
        call is not live.
        """
        run = self._runs[call.interaction_id]
        run.end(call.call_id, continuation_keys)
        run.tokens += tokens
        run.last_active_s = now_s
        run.requested_tools = requested_tools
        closed, final = run.closing is not None, run.closing_final == call.call_id
        if not closed:  # else keep the recorded cause; calls cancelled with their run add none
            run.trouble = _trouble(outcome)
        if final or (run.single and not run.live):
            run.closing = _closing_state(outcome)
        if call.answer_scopes and continuation_keys:
            self._enter_answers(call, continuation_keys, now_s)
        if run.live:
            return None
        if run.closing is not None:
            end = self._end(run, run.closing)
            continuable = continuation_keys or len(run) > 1 or call.run_rule
            if run.single and continuable and not (closed or final):
                self._keep_continuable(run, now_s)
            return end
        if run.due_s is None:
            self._watch(run, now_s + profile.idle_timeout_s)
        return None

    def close(
        self, interaction_id: str, *, cancel: bool, failed: bool = False
    ) -> tuple[RunEnd | None, list[str]]:
        """End a run at its client's request once its live calls have ended.

        The state is complete, cancelled (``cancel``) or aborted (``failed``). Returns its end if no
        call was live, and the ids of the live calls (which the caller cancels if ``cancel``).
        Raises InteractionNotFoundError or InteractionClosedError.
        """
        run = self._runs.get(interaction_id)
        if run is None:
            self._require_not_ended(interaction_id)
            raise _not_found(interaction_id)
        state: RunState = "complete"
        if failed:
            state = "aborted"
            run.single, run.closing_final = False, None  # no call's end may change the state
        elif cancel:
            state = "aborted" if run.trouble in ("throttled", "failed") else "cancelled"
        run.closing = state
        if run.live:
            return None, run.live_calls
        return self._end(run, state), []

    def expire(self, profile_of: Callable[[str], AppProfile], now_s: float) -> list[RunEnd]:
        """End the runs that were idle for their app's time-out. O(ended * log live)."""
        while self._dormant and next(iter(self._dormant.values()))[0] <= now_s:
            self._dormant.popitem(last=False)
        self._continuable.expire(now_s)
        self._index.expire(now_s)
        due: list[tuple[float, str]] = []
        while self._expiry and self._expiry[0][0] <= now_s:
            checked_s, interaction_id = heapq.heappop(self._expiry)
            run = self._runs.get(interaction_id)
            if run is None or run.due_s != checked_s:
                continue  # the entry of a run that has ended, and may have been reopened
            run.due_s = None
            if run.live:
                continue  # watched again when its last call ends
            idle_s = profile_of(run.app).idle_timeout_s
            if not len(run):
                idle_s = min(idle_s, self._limits.empty_idle_s)
            due_s = run.last_active_s + idle_s
            if due_s > now_s:
                self._watch(run, due_s)
            else:
                due.append((due_s, interaction_id))
        return [self._idled(self._runs[run_id], now_s) for _, run_id in sorted(due)]

    def _idled(self, run: Run, now_s: float) -> RunEnd:
        if run.trouble:
            state: RunState = "aborted"
        elif not len(run) or run.requested_tools or run.closing_final is not None:
            state = "expired"
        else:
            state = "complete"
        if self._reopen_grace_s:
            self._dormant[run.interaction_id] = now_s + self._reopen_grace_s, run
            while len(self._dormant) > self._limits.dormant_runs:
                self._dormant.popitem(last=False)
        return self._end(run, state)

    # --- helpers ----------------------------------------------------------------------------------

    def _new_run(
        self, interaction_id: str, owner: Owner, now_s: float, *, declared: bool = False
    ) -> Run:
        if len(self._runs) >= self._limits.live_runs:
            raise TrackerFullError(f"{self._limits.live_runs} interactions are live already")
        run = Run(interaction_id, owner, now_s)
        run.declared = declared
        self._enter(run)
        self._watch(run, now_s)  # the first check computes the real due time
        return run

    def _enter(self, run: Run) -> None:
        self._runs[run.interaction_id] = run
        self._live_of[run.tenant,] += 1
        self._live_of[run.tenant, run.user] += 1

    def _leave(self, run: Run) -> None:
        del self._runs[run.interaction_id]
        for key in ((run.tenant,), (run.tenant, run.user)):
            self._live_of[key] -= 1
            if not self._live_of[key]:
                del self._live_of[key]

    def _require_room(self, owner: Owner) -> None:
        """Raise an error if one more run would exceed the limit of the user, the tenant, or all."""
        tenant, _, user = owner
        for scope, key in (("user", (tenant, user)), ("tenant", (tenant,))):
            most = self._limits.share(scope)
            if most < self._limits.live_runs and self._live_of[key] >= most:
                raise OpenInteractionsError(
                    f"the {scope} has {most:,} open interactions; close some, or wait until they end"
                )
        if len(self._runs) >= self._limits.live_runs:
            raise TrackerFullError(f"{self._limits.live_runs} interactions are live already")

    def _keep_continuable(self, run: Run, now_s: float) -> None:
        """Keep an unnamed run that ended with its call, for calls that continue it."""
        if self._reopen_grace_s:
            run.closing, run.due_s = None, None
            until_s = now_s + self._reopen_grace_s
            self._continuable.put(run.tenant, run.interaction_id, run, until_s)

    def _reopenable(self, interaction_id: str, tenant: str, now_s: float) -> Run | None:
        """Return a run that ended by idling, or with its call, and can be reopened; else None."""
        until_s, run = self._dormant.get(interaction_id, (now_s, None))
        if run is not None and until_s > now_s:
            return run
        return self._continuable.get(tenant, interaction_id, now_s)

    def _reopen(self, interaction_id: str, tenant: str, now_s: float) -> Run | None:
        run = self._reopenable(interaction_id, tenant, now_s)
        if run is not None:
            self._dormant.pop(interaction_id, None)
            self._continuable.pop(tenant, interaction_id)
            self._ended.pop(interaction_id, None)
            self._enter(run)
            self._watch(run, now_s)
        return run

    def _watch(self, run: Run, due_s: float) -> None:
        if run.due_s is None and not run.declared:
            run.due_s = due_s
            heapq.heappush(self._expiry, (due_s, run.interaction_id))

    def _require_new(self, interaction_id: str) -> None:
        if interaction_id in self._runs:
            raise DuplicateCallError(f"interaction {interaction_id!r} exists already")
        self._require_not_ended(interaction_id)

    def _too_many_calls(self, calls: int) -> TrackerFullError:
        most = self._limits.calls_per_run
        return TrackerFullError(f"the interaction has {calls} calls; allowed: {most}")

    def _require_not_ended(self, interaction_id: str) -> None:
        if interaction_id in self._ended:
            state = self._ended[interaction_id]
            raise InteractionClosedError(f"interaction {interaction_id!r} has ended ({state})")

    def _end(self, run: Run, state: RunState) -> RunEnd:
        self._leave(run)
        self._ended[run.interaction_id] = state
        while len(self._ended) > self._limits.remembered_runs:
            self._ended.popitem(last=False)
        return RunEnd.of(run, state)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "runs": [run.to_plain(now_s) for run in self._runs.values()],
            "dormant": [
                [age_of(until_s, now_s), run.to_plain(now_s)]
                for until_s, run in self._dormant.values()
            ],
            "continuable": [
                [age_of(until_s, now_s), run.to_plain(now_s)]
                for _, _, until_s, run in self._continuable.items()
            ],
            "ended": list(self._ended.items()),
            "index": self._index.snapshot(now_s),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._expiry = []
        self._ended = OrderedDict((key, value) for key, value in state["ended"])
        self._runs, self._live_of = {}, Counter()
        for plain in state["runs"]:
            run = Run.from_plain(plain, now_s)
            self._enter(run)
            if run.due_s is not None:
                self._expiry.append((run.due_s, run.interaction_id))
        heapq.heapify(self._expiry)
        self._dormant = OrderedDict(
            (plain["id"], (time_of(age, now_s), Run.from_plain(plain, now_s)))
            for age, plain in state["dormant"]
        )
        limits = self._limits
        self._continuable = SharedTable(limits.continuable_runs, limits.tenant_share)
        for age, plain in state.get("continuable", ()):  # absent in older snapshots
            run = Run.from_plain(plain, now_s)
            self._continuable.put(run.tenant, run.interaction_id, run, time_of(age, now_s))
        self._index = RunIndex(limits.index_entries, limits.tenant_share)
        self._index.restore(state.get("index", []), now_s)


def _trouble(outcome: str) -> WasteCause:
    return "" if outcome == "completed" else cause_of(outcome)


def _closing_state(outcome: str) -> RunState:
    """Return the final state of a run whose last call had this outcome."""
    return "complete" if outcome == "completed" else state_of(outcome)


def _unknown(parent: str) -> UnknownParentError:
    return UnknownParentError(f"parent {parent!r} is not a call of this interaction")


def _not_found(interaction_id: str) -> InteractionNotFoundError:
    return InteractionNotFoundError(f"there is no interaction {interaction_id!r}")
