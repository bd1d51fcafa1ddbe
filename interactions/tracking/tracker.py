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
O(log runs) at most. All tables are bounded, and shared by tenant, app and user
(:class:`~fairserve.interactions.tracking.shares.Shares`). If the table of live runs is full, a run
without a live call ends as if it had been idle for its time-out: of whoever has most an empty one, else
the one idle longest. A bounded number of ended runs is remembered, so that late reuse of an id is not
taken for a new run.

Weakness: a reopened run ends twice for its listeners; the later end replaces the earlier one. Runs with
live calls and programs' runs are never ended early, so they alone could fill the table; the queue and
the workers bound the live calls.
"""

from __future__ import annotations

import math
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
from fairserve.interactions.lazy_heap import LazyHeap
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.run_rules import Clue
from fairserve.interactions.tracking.conversation import last_answer
from fairserve.interactions.tracking.identity import client_call_id, core_call_id
from fairserve.interactions.tracking.immunity import ImmunityRule
from fairserve.interactions.tracking.run import (
    Attachment,
    Owner,
    RestoredRun,
    Run,
    RunState,
    WasteCause,
)
from fairserve.interactions.tracking.run_end import RunEnd, cause_of, state_of
from fairserve.interactions.tracking.run_index import RunIndex
from fairserve.interactions.tracking.shared_table import SharedTable, tick_share
from fairserve.interactions.tracking.shares import Shares

ENDED_AT_ONCE = 512
"""Maximum idle runs that one tick ends: 25 us each."""
ANSWERS_PER_CALL = 16
"""Maximum samples of a call by which a later call finds its run."""


@dataclass(frozen=True, slots=True)
class TrackerLimits:
    """Bounds of the tracker's memory."""

    live_runs: int = 200_000
    tenant_share: float = 1 / 4
    """Share of ``live_runs`` that one tenant may have."""
    user_share: float = 1 / 16
    """Share of ``live_runs`` that one user of an app may have."""
    empty_idle_s: float = 60.0
    """Idle time in seconds after which an open run without a call expires."""
    calls_per_run: int = 10_000
    remembered_runs: int = 10_000
    """Number of ended runs whose ids are remembered, half a kilobyte each."""
    dormant_runs: int = 20_000
    """Maximum runs that ended by idling and can still be reopened."""
    continuable_runs: int = 40_000
    """Maximum unnamed runs that ended with their call and can still be continued."""
    index_entries: int = 200_000
    """Maximum names and answers by which calls find their runs."""

    def __post_init__(self) -> None:
        for name in ("tenant_share", "user_share"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value}; allowed: over 0, to 1")
        if not self.empty_idle_s > 0:
            raise ValueError(f"empty_idle_s is {self.empty_idle_s}; allowed: over 0")

    def share(self, of: str) -> int:
        """Return the maximum live runs of a ``tenant`` or of an app's ``user``; at least 1."""
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
        self._smallest_part = min(limits.live_runs, limits.share("tenant"), limits.share("user"))
        self.immunity = immunity
        self._infer = infer
        self._reopen_grace_s = reopen_grace_s
        self._clear()

    def _clear(self) -> None:
        limits = self._limits
        self._runs: dict[str, Run] = {}
        """Live runs; among those without a live call the one idle longest is first."""
        self._shares: Shares[str] = Shares(2)
        """Owners of the live runs; empty runs may be ended first, runs with a live call never."""
        self._ended: SharedTable[str, RunState] = SharedTable(limits.remembered_runs)
        self._dormant: SharedTable[str, Run] = SharedTable(limits.dormant_runs)
        """Runs that ended by idling; those without a call leave a full table first."""
        self._continuable: SharedTable[str, Run] = SharedTable(limits.continuable_runs)
        """Unnamed runs that ended with their call."""
        self._index = RunIndex(limits.index_entries)
        self._expiry: LazyHeap[str] = LazyHeap()
        """Live runs by their ``due_s``, then by id."""

    def __len__(self) -> int:
        """Return the number of live interactions."""
        return len(self._runs)

    def get(self, interaction_id: str) -> Run | None:
        """Return a live run, read-only."""
        return self._runs.get(interaction_id)

    def runs_of(self, tenant: str, user: str) -> list[Run]:
        """Return the runs in progress of a user in all apps of its tenant. O(runs of all)."""
        owner = (tenant, user)
        return [run for run in self._runs.values() if (run.owner[0], run.owner[2]) == owner]

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
                found = self._index.named(owner, clue.name)
            elif clue.scope is not None:
                runs = (self._index.answered(owner, clue.scope, key) for key in answer)
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
    ) -> RunEnd | None:
        """Open an empty run; if ``sink`` is given, the run is complete when that call ends.

        Returns the end of the run whose place it takes, if the table is full. Raises an
        InteractionError if the id was used before, or if its owner has too many live runs.
        """
        self._require_new(interaction_id)
        displaced = self._displace(owner, now_s)
        self._new_run(interaction_id, owner, now_s, declared=declared).closing_final = sink
        return displaced

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
        self._release(run)
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
        interaction_id, parents, reopens = call.interaction_id, call.parents, None
        run = self._runs.get(interaction_id)
        if parents and call.call_id in parents:
            raise CycleError(f"call {call.call_id!r} names itself as its parent")
        if run is None:
            if call.declared:
                raise _not_found(interaction_id)
            run = self._reopenable(interaction_id, call.tenant, now_s)
            self._displaced_by((call.tenant, call.app, call.user))
            if run is None:
                self._require_not_ended(interaction_id)
                if parents:
                    raise _unknown(parents[0])
                return Attachment(1, under_way=False, immune=False)
            reopens = run
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
        return Attachment(stage, calls > 0, immune, follows, calls, run.tokens, reopens)

    def accept(
        self, call: Call, attachment: Attachment, now_s: float
    ) -> tuple[bool, RunEnd | None]:
        """Add a call that the throttle admitted, at the place returned by :meth:`attach`.

        Returns whether it reopened its run, and the end of the run whose place its run takes.
        """
        run, reopened, displaced = self._runs.get(call.interaction_id), False, None
        begins, idle = run is None, run is not None and not run.live
        if run is None:
            owner = call.tenant, call.app, call.user
            run = attachment.reopens
            displaced = self._displace(owner, now_s)
            if run is None:
                run = Run(call.interaction_id, owner, now_s)
                run.single = call.single
            else:
                reopened = True
                for table in (self._dormant, self._continuable, self._ended):
                    table.pop(call.interaction_id)
        run.add(call.call_id, attachment.stage, attachment.parents)
        run.last_active_s = now_s
        if begins:
            self._enter(run)
            self._watch(run, now_s)  # the first check computes the real due time
        elif idle:
            self._shares.change(run.interaction_id, _rank(run))
        if call.final:
            run.closing_final = call.call_id
        if call.clues:
            self._enter_name(call, now_s)
        return reopened, displaced

    def parent_ids(self, call: Call, attachment: Attachment) -> tuple[str, ...]:
        """Return the ids of the parents of an accepted call."""
        if call.parents is not None:
            return call.parents
        return self._runs[call.interaction_id].names(attachment.parents)

    def reject(self, call: Call, now_s: float) -> bool:
        """Record a rejected call; return whether its run was active."""
        run = self._runs.get(call.interaction_id)
        if run is None:
            return False
        run.last_active_s = now_s
        if not run.live:
            self._release(run)
        if not len(run):
            return False
        run.trouble = "throttled"
        return True

    def withdraw(self, call: Call, profile: AppProfile, now_s: float) -> RunEnd | None:
        """Take back an accepted call that was rejected while it waited; its id may be used again.

        Returns the end of the run if the run ends, too. Raises KeyError if the call is not live.
        O(calls of the run) if the run got another call since.
        """
        run = self._runs[call.interaction_id]
        run.withdraw(call.call_id)
        run.last_active_s = now_s
        if run.closing_final == call.call_id and call.final:
            run.closing_final = None
        if run.live:
            return None
        if run.closing is not None:
            return self._end(run, run.closing)
        if run.single and len(run):  # it had ended, and this call had continued it
            end = self._end(run, "aborted" if run.trouble else "complete")
            self._keep_continuable(run, now_s)
            return end
        if run.single or len(run):
            run.trouble = "throttled"
        if run.single:
            return self._end(run, "aborted")
        self._rest(run, now_s + profile.idle_timeout_s)
        return None

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
        self._rest(run, now_s + profile.idle_timeout_s)
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
        """End the runs that were idle for their app's time-out, as many as one tick can.

        The rest is for the next ticks, the longest due first.
        """
        self._dormant.expire(now_s)
        self._continuable.expire(now_s)
        self._index.expire(self.find, now_s)
        due: list[tuple[float, str]] = []
        for _ in range(tick_share(len(self._expiry))):
            (checked_s, _), interaction_id = self._expiry.first()
            if checked_s > now_s or len(due) == ENDED_AT_ONCE:
                break
            self._expiry.discard(interaction_id)
            run = self._runs[interaction_id]
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
            until_s = now_s + self._reopen_grace_s
            kept = len(run) > 0
            self._dormant.put(run.owner, run.interaction_id, run, until_s, kept=kept)
        run.due_s = None
        return self._end(run, state)

    # --- helpers ----------------------------------------------------------------------------------

    def _new_run(
        self, interaction_id: str, owner: Owner, now_s: float, *, declared: bool = False
    ) -> Run:
        if len(self._runs) >= self._limits.live_runs:
            raise self._full()
        run = Run(interaction_id, owner, now_s)
        run.declared = declared
        self._enter(run)
        self._watch(run, now_s)
        return run

    def _full(self) -> TrackerFullError:
        return TrackerFullError(f"{self._limits.live_runs} interactions are live already")

    def _enter(self, run: Run) -> None:
        self._runs[run.interaction_id] = run
        self._shares.enter(run.owner, run.interaction_id, _rank(run))

    def _leave(self, run: Run) -> None:
        del self._runs[run.interaction_id]
        self._shares.leave(run.interaction_id)
        self._expiry.discard(run.interaction_id)

    def _release(self, run: Run) -> None:
        """Make a run without live calls the last of its owner's that may be ended early."""
        self._runs[run.interaction_id] = self._runs.pop(run.interaction_id)
        self._shares.change(run.interaction_id, _rank(run))

    def _rest(self, run: Run, due_s: float) -> None:
        """Let a run whose last live call has ended expire, or be ended early."""
        self._release(run)
        self._watch(run, due_s)

    def _displaced_by(self, owner: Owner) -> str | None:
        """Return the run that ends early for a new one of this owner; None if there is room.

        Raises an error if the owner has its share of the full table, or of its full part.
        """
        limits = self._limits
        if len(self._runs) < self._smallest_part:
            return None
        for scope, part in (("user", owner), ("tenant", owner[:1])):
            most = limits.share(scope)
            if most < limits.live_runs and self._shares.count(part) >= most:
                found = self._shares.displaced_by(owner, 0, part)
                if found is None:
                    raise OpenInteractionsError(
                        f"the {scope} has {most:,} open interactions; close some, or wait until they end"
                    )
                return found
        if len(self._runs) < limits.live_runs:
            return None
        found = self._shares.displaced_by(owner, 0)
        if found is None:
            raise self._full()
        return found

    def _displace(self, owner: Owner, now_s: float) -> RunEnd | None:
        """End the run that makes room for a new one of this owner, if the table is full."""
        displaced = self._displaced_by(owner)
        return None if displaced is None else self._idled(self._runs[displaced], now_s)

    def _keep_continuable(self, run: Run, now_s: float) -> None:
        """Keep an unnamed run that ended with its call, for calls that continue it."""
        if self._reopen_grace_s:
            run.closing, run.due_s = None, None
            until_s = now_s + self._reopen_grace_s
            self._continuable.put(run.owner, run.interaction_id, run, until_s)

    def _reopenable(self, interaction_id: str, tenant: str, now_s: float) -> Run | None:
        """Return a run that ended by idling, or with its call, and can be reopened; else None."""
        run = self._dormant.get(interaction_id, now_s)
        if run is None:
            run = self._continuable.get(interaction_id, now_s)
            if run is not None and run.tenant != tenant:
                return None
        return run

    def _watch(self, run: Run, due_s: float) -> None:
        if run.due_s is None and not run.declared:
            run.due_s = due_s
            self._expiry.set(run.interaction_id, (due_s, run.interaction_id))

    def _require_new(self, interaction_id: str) -> None:
        if interaction_id in self._runs:
            raise DuplicateCallError(f"interaction {interaction_id!r} exists already")
        self._require_not_ended(interaction_id)

    def _too_many_calls(self, calls: int) -> TrackerFullError:
        most = self._limits.calls_per_run
        return TrackerFullError(f"the interaction has {calls} calls; allowed: {most}")

    def _require_not_ended(self, interaction_id: str) -> None:
        state = self._ended.get(interaction_id, 0.0)
        if state is not None:
            raise InteractionClosedError(f"interaction {interaction_id!r} has ended ({state})")

    def _end(self, run: Run, state: RunState) -> RunEnd:
        self._leave(run)
        self._ended.put(run.owner, run.interaction_id, state, math.inf)
        return RunEnd.of(run, state)

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "runs": [run.to_plain(now_s) for run in self._runs.values()],
            "dormant": [
                [age_of(until_s, now_s), run.to_plain(now_s)]
                for _, _, until_s, run in self._dormant.items()
            ],
            "continuable": [
                [age_of(until_s, now_s), run.to_plain(now_s)]
                for _, _, until_s, run in self._continuable.items()
            ],
            "ended": [[*owner, key, state] for owner, key, _, state in self._ended.items()],
            "index": self._index.snapshot(now_s),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._clear()
        for tenant, app, user, key, ended in state["ended"]:
            self._ended.put((tenant, app, user), key, ended, math.inf)
        for plain in state["runs"]:
            run = Run.from_plain(plain, now_s)
            self._enter(run)
            if run.due_s is not None:
                self._expiry.set(run.interaction_id, (run.due_s, run.interaction_id))
        for age, plain in state["dormant"]:
            run = Run.from_plain(plain, now_s)
            until_s, kept = time_of(age, now_s), len(run) > 0
            self._dormant.put(run.owner, run.interaction_id, run, until_s, kept=kept)
        for age, plain in state["continuable"]:
            run = Run.from_plain(plain, now_s)
            self._continuable.put(run.owner, run.interaction_id, run, time_of(age, now_s))
        self._index.restore(state["index"], now_s)


def _rank(run: Run) -> int | None:
    """Return the rank in which a run ends early: empty runs first, runs with live calls never."""
    return None if run.live or run.declared else int(len(run) > 0)


def _trouble(outcome: str) -> WasteCause:
    return "" if outcome == "completed" else cause_of(outcome)


def _closing_state(outcome: str) -> RunState:
    """Return the final state of a run whose last call had this outcome."""
    return "complete" if outcome == "completed" else state_of(outcome)


def _unknown(parent: str) -> UnknownParentError:
    return UnknownParentError(f"parent {parent!r} is not a call of this interaction")


def _not_found(interaction_id: str) -> InteractionNotFoundError:
    return InteractionNotFoundError(f"there is no interaction {interaction_id!r}")
