"""What budgets had spent before control counts them: told by the ledger, at a start and for new ones.

A budget counts the calls that end after control has heard of it. Those that ended before are in the
ledger, under the moment of their end, so that each call counts once. Until the ledger has told, which
takes as long as a query, the budget knows too little; the request that set it is answered afterwards.

Weakness: while the ledger or the database is away a new budget counts from its setting on, and is told
the rest when they are back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from fairserve.scheduling.events import BudgetSpent, ContractChanged

logger = logging.getLogger(__name__)

SpentBefore = Callable[[ContractChanged, float], Sequence[BudgetSpent]]
"""What a budget had spent, in its period that holds a moment (UTC epoch seconds), by calls that ended
until that moment. Blocks; raises what databases raise, or TimeoutError while the ledger is behind."""


class BudgetOpenings:
    """Asks and tells, from any thread that may block."""

    def __init__(self, spent: SpentBefore, post: Callable[[BudgetSpent], None]) -> None:
        self._spent = spent
        self._post = post
        self._lock = threading.Lock()
        self._pending: list[tuple[ContractChanged, float]] = []

    def open(self, contracts: Iterable[tuple[ContractChanged, float]]) -> None:
        """Tell what the budgets of these contracts had spent until those moments; later if need be."""
        left = [each for each in contracts if not self._told(*each)]
        with self._lock:
            self._pending.extend(left)

    def retry(self) -> None:
        """Tell what could not be told before."""
        with self._lock:
            pending, self._pending = self._pending, []
        self.open(pending)

    def _told(self, contract: ContractChanged, until: float) -> bool:
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
