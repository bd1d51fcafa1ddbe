"""Initial spending of budgets, read from the ledger at a start and for each new budget.

A budget counts the calls that end after control knows it. Earlier calls are in the ledger under the time
of their end, so that each call counts once. Until the query of the ledger has ended, the budget counts
too little; the request that set it is answered afterwards.

Weakness: while the ledger or the database is unavailable a new budget counts from its setting on; the
rest is added once they are available.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from fairserve.scheduling.events import BudgetSpent, ContractChanged

logger = logging.getLogger(__name__)

SpentBefore = Callable[[ContractChanged, float], Sequence[BudgetSpent]]
"""Returns the spending of a budget until a time (UTC epoch seconds), in the period of that time. Blocks;
raises the errors of the database, or TimeoutError while the ledger is behind."""


class BudgetOpenings:
    """Reads initial spending and posts it to control, from any thread that may block."""

    def __init__(self, spent: SpentBefore, post: Callable[[BudgetSpent], None]) -> None:
        self._spent = spent
        self._post = post
        self._lock = threading.Lock()
        self._pending: list[tuple[ContractChanged, float]] = []

    def open(self, contracts: Iterable[tuple[ContractChanged, float]]) -> None:
        """Post the spending of these contracts until those times; on failure it is pending."""
        left = [each for each in contracts if not self._post_spent(*each)]
        with self._lock:
            self._pending.extend(left)

    def retry(self) -> None:
        """Post the pending spending."""
        with self._lock:
            pending, self._pending = self._pending, []
        self.open(pending)

    def _post_spent(self, contract: ContractChanged, until: float) -> bool:
        if contract.quota.period is None:
            return True
        try:
            entries = self._spent(contract, until)
        except Exception as error:
            logger.warning("a new budget waits for the ledger: %s", type(error).__name__)
            return False
        for entry in entries:
            self._post(entry)
        return True
