"""What budgets have spent: asked of the ledger, and told to control."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from fairserve.platform.control.budgets import BudgetOpenings
from fairserve.platform.control.ledger import Ledger
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.reporting.usage.rollups import roll_up
from fairserve.platform.reporting.usage.spending import spent_before
from fairserve.scheduling.events import BudgetSpent, ContractChanged, Event

FLUSH_S = 10.0
"""How long a new budget waits for the ledger before it is told later."""


class SpentBudgets:
    """The ledger's answer for one budget, and for all of them when the server starts."""

    def __init__(self, sessions: SessionFactory, ledger: Ledger) -> None:
        self._sessions = sessions
        self._ledger = ledger

    def before(self, contract: ContractChanged, until: float) -> Sequence[BudgetSpent]:
        """A :data:`~fairserve.platform.control.budgets.SpentBefore`."""
        if not self._ledger.flush(FLUSH_S):
            raise TimeoutError("the ledger is behind the journal")
        with self._sessions() as session:
            return spent_before(session, contract, until)

    def open_all(self, events: Iterable[Event], openings: BudgetOpenings) -> None:
        """Tell what the budgets among the start's events have spent; blocks."""
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
    """Tell what the ledger could not tell at once, again and again."""
    while True:
        await asyncio.sleep(FLUSH_S)
        await asyncio.to_thread(openings.retry)
