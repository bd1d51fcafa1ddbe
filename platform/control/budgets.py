"""Initial spending of budgets, read from the ledger at a start and for each new budget.

A budget counts the calls that end after control knows it. Earlier calls are in the ledger under the time
of their end, so that each call counts once. Until the query of the ledger has ended, the budget counts
too little; the request that set it is answered afterwards. If its periods change before, only the query
for the new ones counts.

Weakness: while the ledger or the database is unavailable a new budget counts from its setting on; the
rest is added once they are available.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

from fairserve.scheduling.directory import holder_of
from fairserve.scheduling.events import BudgetSpent, ContractChanged
from fairserve.throttling.quotas.contracts import Holder

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
        self._pending: dict[Holder, tuple[ContractChanged, float]] = {}
        """Budgets whose spending was not posted, each with its time."""

    def open(self, contracts: Iterable[tuple[ContractChanged, float]]) -> None:
        """Post the spending of these contracts until those times; on failure it is pending."""
        budgets = {holder_of(each[0]): each for each in contracts if each[0].quota.period}
        with self._lock:
            self._pending |= budgets
        for holder, budget in budgets.items():
            self._post_spent(holder, budget)

    def supersede(self, contract: ContractChanged) -> None:
        """Post no spending that was asked for before a change of a budget's periods."""
        with self._lock:
            self._pending.pop(holder_of(contract), None)

    def retry(self) -> None:
        """Post the pending spending."""
        with self._lock:
            pending = dict(self._pending)
        for holder, budget in pending.items():
            self._post_spent(holder, budget)

    def _post_spent(self, holder: Holder, budget: tuple[ContractChanged, float]) -> None:
        try:
            entries = self._spent(*budget)
        except Exception as error:
            logger.warning("a new budget waits for the ledger: %s", type(error).__name__)
            return
        with self._lock:
            if self._pending.get(holder) is not budget:
                return  # the periods have changed since, or another thread has posted it
            del self._pending[holder]
        for entry in entries:
            self._post(entry)
