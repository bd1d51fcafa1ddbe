"""Recovery at the start: what the last process left in the journal and in the database.

Calls that were open in the journal are closed as failed, with their last progress. Control gets apps,
quotas, prices and spent budgets from the database, and then the open interactions. Those are restored
only after the ledger has written the journal's rest, because their graphs consist of its rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairserve.platform.control.journal.journal import Journal
from fairserve.platform.control.journal.segments import segment_numbers, segment_path
from fairserve.platform.control.ledger import Ledger, RowSink
from fairserve.platform.control.record import plain_of, stopped_record
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsJournal, RowsLedger
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.cell_time import delete_cell_time
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.fleet.fleet import StoredFleet
from fairserve.platform.fleet.repository import load_stored
from fairserve.platform.reporting.usage.spent_budgets import SpentBudgets
from fairserve.platform.server.settings import Settings
from fairserve.platform.serving.batches.repository import BATCHES
from fairserve.platform.serving.files.repository import abandon
from fairserve.platform.serving.interactions.restoring import restore_interactions
from fairserve.platform.serving.programs.repository import PROGRAMS
from fairserve.platform.serving.responses.repository import RESPONSES
from fairserve.platform.tenancy.apps.control_events import load_control_events
from fairserve.platform.tenancy.prices.book import PriceBook
from fairserve.platform.tenancy.prices.repository import load_book
from fairserve.platform.tenancy.profiles.changes import profile_versions
from fairserve.platform.tenancy.system.in_force import load_system
from fairserve.scheduling.events import Event
from fairserve.scheduling.system import SystemConfig

logger = logging.getLogger(__name__)

RECOVERY_S = 60.0
"""Longest wait of a start until the ledger has written what the last process left, in seconds."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state that the database holds for control and the fleet when the server starts."""

    system: SystemConfig
    profile_versions: Mapping[str, int]
    """Version of each app's profile, by app, at most as new as ``events``."""
    events: Sequence[Event]
    """Apps, weights, quotas and users, in a stable order."""
    fleet: StoredFleet
    prices: PriceBook


def close_open_calls(journal: RowsJournal) -> None:
    """Open the journal, and close the calls that the last process left as failed."""
    now = utc_now().timestamp()
    left = journal.open()
    for call in left:
        record = stopped_record(call.accepted, call.progress, now)
        journal.append("closed", call.key, plain_of(record))
    if left:
        logger.warning("%d calls were open when the server stopped: recorded as failed", len(left))


def write_left_rows(folder: Path, sink: RowSink) -> None:
    """Bring the rows that an earlier process left in a journal to the database, and empty the journal.

    Other processes of the cell have its open calls. The rows may be there already: they are equal then.
    Raises OSError if the database does not take them in time; the journal stays then.
    """
    if not folder.is_dir():
        return
    left = Journal(folder)
    left.open()
    try:
        ledger = Ledger(left, sink)
        ledger.start()
        written = ledger.close(RECOVERY_S)
    finally:
        left.close()
    if not written:
        raise OSError(f"the database does not take the rows of {folder}; start again when it does")
    for number in segment_numbers(folder):
        segment_path(folder, number).unlink()


def load_stored_state(sessions: SessionFactory, settings: Settings) -> StoredState:
    """Read the stored state. Raises SQLAlchemyError, and ValueError for a system that is not valid."""
    with sessions() as session:
        system = load_system(session, settings.tuning)
    # Before the events: a profile that is learned in between counts as new.
    versions = profile_versions(sessions)
    with sessions() as session:
        events = load_control_events(session, settings.tenancy.learning_options)
    fleet = load_fleet(sessions)
    with sessions() as session:
        prices = load_book(session)
    return StoredState(system, versions, events, fleet, prices)


def end_claims(sessions: SessionFactory) -> None:
    """End the claims of earlier servers on batches, programs, responses, and files that they wrote.

    Only for a server that holds the database: that proves that the others have ended. Else a claim ends
    when its lease runs out (:mod:`fairserve.platform.serving.claims`).
    """
    with sessions.begin() as session:
        BATCHES.void(session)
        PROGRAMS.void(session)
        RESPONSES.void(session)
        abandon(session, utc_now())


def end_cell(sessions: SessionFactory) -> None:
    """Note that this server decides alone: a cell that servers have shared is not continued after it.

    See :mod:`fairserve.platform.server.noted_time`.
    """
    with sessions.begin() as session:
        delete_cell_time(session)


def load_fleet(sessions: SessionFactory) -> StoredFleet:
    """Read the stored fleet. Raises SQLAlchemyError."""
    with sessions() as session:
        return load_stored(session)


async def restore(
    sessions: SessionFactory,
    control: ControlService,
    ledger: RowsLedger,
    spent: SpentBudgets,
    events: Sequence[Event],
    previous_alive_at: float | None,
) -> None:
    """Post the stored events to the started control, start the ledger, and restore open interactions.

    ``previous_alive_at`` is the UTC epoch second at which the last server was known to serve.
    """
    for event in events:
        control.post(event)
    ledger.start()
    await asyncio.to_thread(spent.open_all, events, control.openings.open)
    # The database or the journal has everything that the last process left.
    if not await asyncio.to_thread(ledger.flush, RECOVERY_S):
        logger.warning("the ledger is behind: some calls will be missing in restored interactions")
    await restore_interactions(sessions, control, previous_alive_at)
