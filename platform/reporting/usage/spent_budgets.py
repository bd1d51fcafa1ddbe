"""Read the spending of budgets from the ledger and report it to control."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from fairserve.platform.control.budgets import BudgetOpenings
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.spending import spent_before
from fairserve.scheduling.dispatch.events import BudgetSpent, ContractChanged, Event

FLUSH_S = 10.0
"""Seconds that a new budget waits for the ledger; its spending is reported later otherwise."""


class SpentBudgets:
    """Reader of the spending of one budget, and of all budgets at the server's start."""

    def __init__(self, sessions: SessionFactory, ledger: Ledger) -> None:
        self._sessions = sessions
        self._ledger = ledger

    def before(self, contract: ContractChanged, until: float) -> Sequence[BudgetSpent]:
        """Implement :data:`~fairserve.platform.control.budgets.SpentBefore`."""
        if not self._ledger.flush(FLUSH_S):
            raise TimeoutError("the ledger is behind the journal")
        with self._sessions() as session:
            return spent_before(session, contract, until)

    def open_all(self, events: Iterable[Event], openings: BudgetOpenings) -> None:
        """Report the spending of all budgets in the events of the start; blocks."""
        now = utc_now().timestamp()
        budgets = [
            (event, now)
            for event in events
            if isinstance(event, ContractChanged) and event.quota.period is not None
        ]
        if budgets:
            roll_up(self._sessions)
            openings.open(budgets)


async def retry_openings(openings: BudgetOpenings) -> None:
    """Retry reports that failed because the ledger was behind, every ``FLUSH_S``."""
    while True:
        await asyncio.sleep(FLUSH_S)
        await asyncio.to_thread(openings.retry)
