"""Runs of one app: live ones from control, ended ones from the database."""

from __future__ import annotations

import asyncio

from sqlalchemy.exc import OperationalError

from fairserve.interactions.identity import IdentityError, checked_id, core_call_id, core_run_id
from fairserve.platform.auth import Principal
from fairserve.platform.control.port import ControlPort
from fairserve.platform.db.base import new_id
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.errors import InvalidRequestError, NotFoundError, UnavailableError
from fairserve.platform.interactions import repository
from fairserve.platform.interactions.graph_view import MAX_CALLS, GraphOut, graph_of
from fairserve.platform.interactions.schemas import (
    InteractionCreate,
    InteractionOut,
    InteractionQuery,
    of_row,
    of_view,
)
from fairserve.platform.ledger import Ledger

FLUSH_S = 5.0
"""How long a view waits for the database to have what the journal has."""


class Interactions:
    """What an app key may do with its app's runs. Another app's runs do not exist for it."""

    def __init__(
        self,
        control: ControlPort,
        sessions: SessionFactory,
        ledger: Ledger,
        principal: Principal,
    ) -> None:
        assert principal.tenant_id is not None, "only app keys have runs"
        assert principal.app_id is not None, "only app keys have runs"
        self._control = control
        self._sessions = sessions
        self._ledger = ledger
        self._tenant = principal.tenant_id
        self._app = principal.app_id

    async def open(self, body: InteractionCreate) -> InteractionOut:
        """Open an empty run; the id is the client's, or a new one. Raises ConflictError."""
        run_id = new_id("run") if body.id is None else self._checked(body.id)
        core_id = core_run_id(self._app, run_id)
        sink = None
        if body.sink is not None:
            sink = core_call_id(core_id, self._checked(body.sink, "sink"))
        user = body.user or self._app
        view = await self._control.open_interaction(core_id, self._tenant, self._app, user, sink)
        return of_view(view)

    async def list(self, query: InteractionQuery) -> list[InteractionOut]:
        """Live runs, then ended ones; ``offset`` counts among the ended.

        A run that ended less than a second ago may be in neither part yet.
        """
        found: list[InteractionOut] = []
        if query.state != "ended" and query.offset == 0:
            views = await self._control.interactions(self._app, query.limit)
            found = [of_view(view) for view in views]
        if query.state != "live" and len(found) < query.limit:
            try:
                rows = await asyncio.to_thread(
                    repository.latest,
                    self._sessions,
                    self._tenant,
                    self._app,
                    limit=query.limit - len(found),
                    offset=query.offset,
                )
            except OperationalError as error:
                raise _unavailable() from error
            found += [of_row(row) for row in rows]
        return found

    async def get(self, run_id: str) -> InteractionOut:
        """One run. Raises NotFoundError."""
        view = await self._control.interaction(core_run_id(self._app, self._checked(run_id)))
        if view is not None:
            return of_view(view)
        try:
            row = await asyncio.to_thread(
                repository.find, self._sessions, self._tenant, self._app, run_id
            )
        except OperationalError as error:
            raise _unavailable() from error
        if row is None:
            raise NotFoundError("there is no such interaction", code="interaction_not_found")
        return of_row(row)

    async def graph(self, run_id: str) -> GraphOut:
        """The calls of a run. Raises NotFoundError, and UnavailableError while the database is away."""
        core_id = core_run_id(self._app, self._checked(run_id))
        live = await self._control.interaction_calls(core_id)
        # A call that ended a moment ago is in the journal only: it is to be in one of the two.
        if not await asyncio.to_thread(self._ledger.flush, FLUSH_S):
            raise _unavailable()
        run = await self.get(run_id)
        try:
            ended = await asyncio.to_thread(
                repository.calls, self._sessions, self._tenant, self._app, run_id, MAX_CALLS
            )
        except OperationalError as error:
            raise _unavailable() from error
        return graph_of(run_id, run.state, run.user, ended, live)

    async def close(self, run_id: str, *, cancel: bool) -> InteractionOut | None:
        """End a run; returns it if calls of it still run. Raises NotFound- or ConflictError."""
        core_id = core_run_id(self._app, self._checked(run_id))
        await self._control.close_interaction(core_id, cancel=cancel)
        view = await self._control.interaction(core_id)
        return None if view is None else of_view(view)

    @staticmethod
    def _checked(text: str, field: str = "id") -> str:
        try:
            return checked_id(text, field)
        except IdentityError as error:
            raise InvalidRequestError(str(error), param=field) from error


def _unavailable() -> UnavailableError:
    return UnavailableError("the database does not answer", headers={"Retry-After": "5"})
