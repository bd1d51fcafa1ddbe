"""The runs of one app: live ones from control, ended ones from the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from fairserve.interactions.tracking.identity import core_call_id, core_run_id
from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.base.turns import Turns
from fairserve.platform.control.messages import RunView
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsLedger
from fairserve.platform.db import audit
from fairserve.platform.db.base import new_id
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.session import unavailable
from fairserve.platform.serving.in_database import in_database, write_in
from fairserve.platform.serving.interactions import repository
from fairserve.platform.serving.interactions.events import RunEvents
from fairserve.platform.serving.interactions.graph_view import MAX_NODES, GraphOut, graph_of
from fairserve.platform.serving.interactions.opening import Opening, checked
from fairserve.platform.serving.interactions.schemas import InteractionOut, of_row, of_view
from fairserve.platform.serving.programs.repository import ProgramKey
from fairserve.platform.serving.programs.service import BY_CLIENT, Programs
from fairserve.platform.serving.programs.task_calls import ProgramOwner
from fairserve.platform.tenancy.auth import Principal

BY_OPERATOR = "cancelled by an operator"
GRAPHS_AT_ONCE = 2
"""Graphs of large runs use the CPU; more requests wait in turns of tenants, so that calls do not."""
FLUSH_S = 5.0
"""Seconds for which a view waits until the database has the journal's entries."""


@dataclass(frozen=True)
class RunParts:
    """Running parts of the server for the views of runs; endpoints find them as ``app.state.runs``."""

    control: ControlService
    sessions: SessionFactory
    ledger: RowsLedger
    programs: Programs
    graph_turns: Turns
    """Bounds how many graphs a server makes at a time."""


class Interactions:
    """The runs of one app. Another app's runs do not exist here."""

    def __init__(self, parts: RunParts, tenant: str, app: str) -> None:
        self._graph_turns = parts.graph_turns
        self._control = parts.control
        self._sessions = parts.sessions
        self._ledger = parts.ledger
        self._programs = parts.programs
        self._tenant = tenant
        self._app = app

    async def open(self, opening: Opening) -> InteractionOut:
        """Open a run; the id is the client's, or a new one. Raises ConflictError if it is used."""
        body = opening.run
        run_id = body.id or new_id("run")
        core_id = core_run_id(self._app, run_id)
        user = body.user or self._app
        if opening.program is not None:
            owner = ProgramOwner(self._key(run_id), user)
            view = await self._programs.submit(
                owner, opening.declaration, opening.program, opening.size_bytes
            )
            found = of_view(view)
            found.program = await self._programs.view(owner.key)
            return found
        sink = None if body.sink is None else core_call_id(core_id, body.sink)
        view = await self._control.open_interaction(core_id, self._tenant, self._app, user, sink)
        return of_view(view)

    async def get(self, run_id: str) -> InteractionOut:
        """Return a run, with its program if it has one. Raises NotFoundError."""
        key = self._key(run_id)
        elsewhere = await self._programs.runs_elsewhere(key)
        saved = await self._programs.view(key) if elsewhere else None
        found = await self._find(run_id)
        if found.ended_at is not None or self._programs.is_live(key):
            saved = await self._programs.view(key)
        found.program = saved
        return found

    async def _find(self, run_id: str) -> InteractionOut:
        view = await self._live(run_id)
        if view is not None:
            return of_view(view)
        row = await in_database(repository.find, self._sessions, self._tenant, self._app, run_id)
        if row is None:
            raise _not_found()
        return of_row(row)

    async def _live(self, run_id: str) -> RunView | None:
        """Return a run that control has; another tenant's is none."""
        view = await self._control.interaction(core_run_id(self._app, checked(run_id)))
        return view if view is not None and view.tenant == self._tenant else None

    async def from_memory(
        self, run_id: str, *, offset: int = 0
    ) -> tuple[InteractionOut, GraphOut] | None:
        """Return what control has of a run: its state, and its calls in progress; None if nothing.

        Needs no database. The app need not be known to be the tenant's.
        """
        view = await self._live(run_id)
        if view is None:
            return None
        live = await self._control.interaction_calls(view.interaction_id)
        run = of_view(view)
        return run, graph_of(run_id, run.state, run.user, (), live, offset=offset)

    async def graph(self, run_id: str, *, limit: int = MAX_NODES, offset: int = 0) -> GraphOut:
        """Return a page of the calls of a run, and the figures of all of them.

        Raises NotFoundError, and UnavailableError while the database is away.
        """
        core_id = core_run_id(self._app, checked(run_id))
        await in_database(self._sessions)  # raises at once while the database is known to be away
        live = await self._control.interaction_calls(core_id)
        # A call that ended a moment ago is in the journal only: it is to be in one of the two.
        if not await asyncio.to_thread(self._ledger.flush, FLUSH_S):
            raise unavailable()
        run = await self.get(run_id)

        def build() -> GraphOut:
            ended = repository.graph_rows(self._sessions, self._tenant, self._app, run_id)
            return graph_of(
                run_id, run.state, run.user, ended, live, run.program, limit=limit, offset=offset
            )

        await self._graph_turns.take(self._tenant)
        try:
            return await in_database(build)
        finally:
            self._graph_turns.release(self._tenant)

    async def close(self, run_id: str) -> int:
        """Close a run. Return the number of its calls that still run.

        Raises NotFoundError, or ConflictError for one that has ended or is a program's.
        """
        core_id = core_run_id(self._app, checked(run_id))
        if await self._is_program(run_id):
            raise ConflictError(
                "a program ends by itself; DELETE cancels it", code="program_run", param="id"
            )
        await self._control.interaction(core_id)  # raises before the run is closed, if at all
        await self._control.close_interaction(core_id, cancel=False)
        view = await self._control.interaction(core_id)
        return 0 if view is None else view.live_calls

    async def cancel(self, run_id: str, reason: str = BY_CLIENT) -> None:
        """Cancel a run with all its calls. Raises NotFoundError or ConflictError.

        A program shows the reason.
        """
        core_id = core_run_id(self._app, checked(run_id))
        if await self._is_program(run_id):
            await self._programs.cancel(self._key(run_id), reason)
        else:
            await self._control.close_interaction(core_id, cancel=True)

    async def follow(self, run_id: str, keepalive_s: float, sharer: str) -> AsyncIterator[bytes]:
        """Return the events of a run for SSE, its current state first. Raises NotFoundError.

        ``sharer`` is the tenant that follows, or the operators.
        """
        core_id = core_run_id(self._app, checked(run_id))

        async def read() -> InteractionOut:
            return await self.get(run_id)

        await read()
        events = RunEvents(core_id, self._key(run_id), sharer)
        return events.stream(self._control, self._programs, read, keepalive_s)

    async def _is_program(self, run_id: str) -> bool:
        """Return whether a program runs here or, as far as the database answers, elsewhere."""
        key = self._key(run_id)
        return self._programs.is_live(key) or await self._programs.runs_elsewhere(key)

    def _key(self, run_id: str) -> ProgramKey:
        return ProgramKey(self._tenant, self._app, run_id)


async def cancel_for_operator(parts: RunParts, principal: Principal, app: str, run_id: str) -> None:
    """Cancel a run of any tenant with all its calls, queued or running; a program, too.

    The audit log records it at once, even if the run then ends by itself. Raises NotFoundError.
    """
    view = await parts.control.interaction(core_run_id(app, checked(run_id)))
    if view is None:
        raise _not_found()
    if view.ended_at is None:
        await write_in(
            parts.sessions,
            partial(_record_cancel, principal=principal, view=view, run_id=run_id),
        )
    await Interactions(parts, view.tenant, app).cancel(run_id, BY_OPERATOR)


def _record_cancel(session: Session, principal: Principal, view: RunView, run_id: str) -> None:
    before = {"state": view.state, "calls": view.calls, "live_calls": view.live_calls}
    target = f"{view.app}/{run_id}"
    audit.record(
        session, principal, "interaction.cancel", target, tenant_id=view.tenant, before=before
    )


def _not_found() -> NotFoundError:
    return NotFoundError("there is no such interaction", code="interaction_not_found")
