"""Read the spending of budgets from the ledger and report it to control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from fairserve.platform.base.threads import to_its_end
from fairserve.platform.control.storage import RowsLedger
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.spending import spent_before
from fairserve.scheduling.events import BudgetSpent, ContractChanged, Event

FLUSH_S = 10.0
"""Seconds that a new budget waits for the ledger; its spending is reported later otherwise."""

Report = Callable[[Iterable[tuple[ContractChanged, float]]], None]
"""Reports to control what each budget has spent until its time; blocks."""


class SpentBudgets:
    """Reader of the spending of one budget, and of all budgets at the server's start."""

    def __init__(self, sessions: SessionFactory, ledger: RowsLedger) -> None:
        self._sessions = sessions
        self._ledger = ledger

    def before(self, contract: ContractChanged, until: float) -> Sequence[BudgetSpent]:
        """Return the spending of a budget until a time (UTC epoch seconds). Blocks.

        Raises SQLAlchemyError, or TimeoutError while the ledger is behind.
        """
        if not self._ledger.flush(FLUSH_S):
            raise TimeoutError("the ledger is behind the journal")
        with self._sessions() as session:
            return spent_before(session, contract, until)

    def open_all(self, events: Iterable[Event], report: Report) -> None:
        """Report the spending of all budgets in the events of the start; blocks."""
        now = utc_now().timestamp()
        budgets = [
            (event, now)
            for event in events
            if isinstance(event, ContractChanged) and event.quota.period is not None
        ]
        if budgets:
            roll_up(self._sessions)
            report(budgets)


async def retry_openings(retry: Callable[[], None]) -> None:
    """Retry reports that failed because the ledger was behind, every ``FLUSH_S``."""
    while True:
        await asyncio.sleep(FLUSH_S)
        await to_its_end(retry)
