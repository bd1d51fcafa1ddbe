"""List runs: the live ones from control, then the ended ones from the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fairserve.platform.control.messages import RunView
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.ledger import LedgerInteraction
from fairserve.platform.db.schemas import Paging
from fairserve.platform.serving.in_database import in_database
from fairserve.platform.serving.interactions import repository

ListedState = Literal[
    "all", "live", "active", "held", "ended", "complete", "cancelled", "aborted", "expired"
]
"""``held``: live runs that wait for memory; ``active``: the other live ones."""
LIVE_STATES: Mapping[str, bool | None] = {"live": None, "active": False, "held": True}
"""States of live runs, with whether these wait for memory; None: both."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Selects runs; None: all. ``state`` is one of :data:`ListedState`."""

    tenant: str | None = None
    app: str | None = None
    user: str | None = None
    state: str = "all"


async def list_runs(
    control: ControlService, sessions: SessionFactory, which: RunFilter, page: Paging
) -> tuple[list[RunView], list[LedgerInteraction]]:
    """Return live runs, then ended ones, the latest opened first; ``offset`` counts among the ended.

    A run that ended less than a second ago may be in neither part yet. Raises UnavailableError.
    """
    live: list[RunView] = []
    if which.state in ("all", *LIVE_STATES) and page.offset == 0:
        held = LIVE_STATES.get(which.state)
        live = await control.runs(which.tenant, which.app, page.limit, user=which.user, held=held)
    if which.state in LIVE_STATES or len(live) >= page.limit:
        return live, []
    ended = await in_database(
        repository.latest,
        sessions,
        which.tenant,
        which.app,
        user=which.user,
        state=None if which.state in ("all", "ended") else which.state,
        limit=page.limit - len(live),
        offset=page.offset,
    )
    return live, ended
