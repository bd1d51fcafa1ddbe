"""Views of the live interactions: owner, opening time, numbers of calls and tokens.

The tracker in the core decides; this module follows it with wall-clock times. An entry exists exactly
as long as its run in the tracker, whose bound therefore applies here. The runs that ended last stay
readable until the ledger has written their rows, so that a client can read a run right after it
closed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fairserve.interactions.call import Call
from fairserve.interactions.tracking.identity import client_call_id, client_run_id
from fairserve.interactions.tracking.run import RestoredRun, Run, RunState
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.control.messages import InteractionRecord, OpenInteractionRecord, RunView
from fairserve.platform.control.record import values_of
from fairserve.scheduling.events import InteractionEnded

MAX_ENDED = 4_000
"""Ended runs that are kept: those of ten seconds with 400 calls a second; the ledger writes several
times a second. Each takes 0.7 KB."""


@dataclass(slots=True)
class _Run:
    tenant: str
    app: str
    user: str
    opened_at: float
    last_active_at: float
    calls: int = 0
    live_calls: int = 0
    tokens: int = 0
    saved: tuple[str | None, RunState | None] | None = None
    """Sink and closing state in the journal; None if the journal does not have the run."""


class LiveRuns:
    """Runs by core id, and by owner in the order of their opening. All but :meth:`latest` is O(1)."""

    def __init__(self, on_begin: Callable[[str], None] = lambda tenant: None) -> None:
        """``on_begin`` is called with the tenant of each run that begins."""
        self._on_begin = on_begin
        self._runs: dict[str, _Run] = {}
        self._of_tenant: dict[str, dict[str, _Run]] = {}
        self._of_app: dict[str, dict[str, _Run]] = {}
        """Owners without a live run have no entry."""
        self._ended: SharedTable[str, RunView] = SharedTable(MAX_ENDED)

    def __len__(self) -> int:
        """Number of live runs."""
        return len(self._runs)

    def opened(
        self,
        run_id: str,
        tenant: str,
        app: str,
        user: str,
        at: float,
    ) -> RunView:
        """Add a run that was opened before its first call."""
        run = _Run(tenant, app, user, at, at)
        self._begun(run_id, run)
        return _view(run_id, run)

    def restored(self, run: RestoredRun, opened_at: float, last_active_at: float) -> RunView:
        """Add a run that was open before a restart."""
        tenant, app, user = run.owner
        live = _Run(
            tenant,
            app,
            user,
            opened_at,
            last_active_at,
            len(run.calls),
            tokens=sum(call.tokens for call in run.calls),
            saved=(run.sink, run.closing),
        )
        self._begun(run.interaction_id, live)
        return _view(run.interaction_id, live)

    def call_accepted(
        self, call: Call, at: float, of_core: Run | None = None, age_s: float = 0.0
    ) -> float:
        """Add a call to its run, which it may begin; return the time at which the run was opened.

        ``of_core`` is the core's run with this call, of the age in seconds.
        """
        run = self._runs.get(call.interaction_id)
        if run is None:
            run = _Run(call.tenant, call.app, call.user, opened_at=at, last_active_at=at)
            self._begun(call.interaction_id, run)
            before = self._ended.pop(call.interaction_id)
            if before is not None:  # the call has reopened it
                run.opened_at, run.calls, run.tokens = before.opened_at, before.calls, before.tokens
            elif of_core is not None and len(of_core) > 1:  # it ended too long ago for a view
                run.opened_at, run.calls, run.tokens = at - age_s, len(of_core) - 1, of_core.tokens
        run.calls += 1
        run.live_calls += 1
        run.last_active_at = at
        return run.opened_at

    def unsaved(self, run: Run) -> OpenInteractionRecord | None:
        """Return the record of an open run if it differs from that in the journal; once."""
        live = self._runs.get(run.interaction_id)
        state = (run.closing_final, run.closing)
        if live is None or run.single or run.declared or live.saved == state:
            return None
        live.saved = state
        sink = run.closing_final
        return OpenInteractionRecord(
            interaction_id=client_run_id(run.app, run.interaction_id),
            tenant=run.tenant,
            app=run.app,
            user=run.user,
            opened_at=live.opened_at,
            sink=None if sink is None else client_call_id(run.interaction_id, sink),
            closing=run.closing,
        )

    def call_ended(self, call: Call, tokens: int, at: float) -> None:
        """Count the end of a call, whose run may have ended before."""
        run = self._runs.get(call.interaction_id)
        if run is not None:
            run.live_calls -= 1
            run.tokens += tokens
            run.last_active_at = at

    def call_withdrawn(self, call: Call) -> None:
        """Remove a queued call that was rejected."""
        run = self._runs.get(call.interaction_id)
        if run is not None:
            run.calls -= 1
            run.live_calls -= 1

    def ended(self, event: InteractionEnded, at: float) -> InteractionRecord:
        """Remove a run that ended; return its row."""
        run_id = event.interaction_id
        run = self._pop(run_id)
        view = RunView(
            interaction_id=run_id,
            tenant=event.tenant,
            app=event.app,
            user=event.user,
            state=event.state,
            opened_at=at if run is None else run.opened_at,
            last_active_at=at,
            calls=event.calls,
            live_calls=0,
            tokens=event.tokens,
            ended_at=at,
            wasted_tokens=event.wasted_tokens,
            waste_cause=event.cause,
        )
        self._ended.put((view.tenant,), run_id, view)
        return InteractionRecord(
            interaction_id=client_run_id(view.app, run_id),
            tenant=view.tenant,
            app=view.app,
            user=view.user,
            state=view.state,
            opened_at=view.opened_at,
            ended_at=at,
            calls=view.calls,
            tokens=view.tokens,
            wasted_tokens=view.wasted_tokens,
            waste_cause=view.waste_cause,
        )

    def view(self, run_id: str) -> RunView | None:
        """Return a run that is live or ended lately."""
        run = self._runs.get(run_id)
        return self._ended.get(run_id) if run is None else _view(run_id, run)

    def latest(
        self,
        limit: int,
        *,
        tenant: str | None = None,
        app: str | None = None,
        user: str | None = None,
    ) -> list[RunView]:
        """Return live runs, of a tenant, app and user if given, the latest opened first.

        O(limit); of one user O(live runs of its app, its tenant, or all).
        """
        runs = self._runs
        if app is not None:
            runs = self._of_app.get(app, {})
        elif tenant is not None:
            runs = self._of_tenant.get(tenant, {})
        found = (
            _view(run_id, run)
            for run_id, run in reversed(runs.items())
            if tenant in (None, run.tenant) and user in (None, run.user)
        )
        return list(islice(found, limit))

    def _begun(self, run_id: str, run: _Run) -> None:
        self._add(run_id, run)
        self._on_begin(run.tenant)

    def _add(self, run_id: str, run: _Run) -> None:
        self._runs[run_id] = run
        self._of_tenant.setdefault(run.tenant, {})[run_id] = run
        self._of_app.setdefault(run.app, {})[run_id] = run

    def _pop(self, run_id: str) -> _Run | None:
        run = self._runs.pop(run_id, None)
        if run is not None:
            for owners, owner in ((self._of_tenant, run.tenant), (self._of_app, run.app)):
                runs = owners[owner]
                del runs[run_id]
                if not runs:
                    del owners[owner]
        return run

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "live": [[run_id, *_RUN(run)] for run_id, run in self._runs.items()],
            "ended": self._ended.snapshot(lambda run_id, view: _RUN_VIEW(view)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._runs, self._of_tenant, self._of_app = {}, {}, {}
        for run_id, *plain in state["live"]:
            run = _Run(*plain)
            run.saved = None if run.saved is None else (run.saved[0], run.saved[1])
            self._add(run_id, run)
        self._ended.restore(state["ended"], lambda plain: (plain[0], RunView(*plain)))


_RUN, _RUN_VIEW = values_of(_Run), values_of(RunView)


def _view(run_id: str, run: _Run) -> RunView:
    return RunView(
        interaction_id=run_id,
        tenant=run.tenant,
        app=run.app,
        user=run.user,
        state="under_way" if run.calls else "open",
        opened_at=run.opened_at,
        last_active_at=run.last_active_at,
        calls=run.calls,
        live_calls=run.live_calls,
        tokens=run.tokens,
    )
