"""The status line as a viewer sees it: the state of the server, and its alarms by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairserve.platform.background.alarms.schemas import alarm_out
from fairserve.platform.console.incidents import IncidentLink, title_of
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.status import Status

if TYPE_CHECKING:
    from starlette.datastructures import State

NAMED = 2
"""Open alarms that the line names; it counts the rest."""
ALARMS = "/console/alarms"


@dataclass(frozen=True, slots=True)
class StatusView:
    """The status with its alarms as links."""

    status: Status
    alarms: Sequence[IncidentLink]
    """The first open alarms, bad ones first; each leads to its row on the page of alarms."""
    alarms_since: float | None
    """UTC epoch second at which the oldest open alarm was opened; None without one."""

    @property
    def more(self) -> int:
        """Return the number of open alarms that are not named."""
        return len(self.status.alarms) - len(self.alarms)


def status_view(state: State, viewer: Viewer) -> StatusView:
    """Return the status for a viewer: a tenant's own alarms, all for an operator. Blocks.

    Names that no page has shown yet are read from the database.
    """
    status: Status = state.status.of(viewer.tenant_id)
    shown = [alarm_out(each, viewer.tenant_id) for each in status.alarms[:NAMED]]
    names = state.console.names.recall(
        state.session_factory,
        viewer.principal.sharer,
        apps={each.app for each in shown if each.app},
    )
    return StatusView(
        status,
        [IncidentLink(f"{ALARMS}#{each.id}", title_of(each, names)) for each in shown],
        min((each.opened_at for each in status.alarms), default=None),
    )
