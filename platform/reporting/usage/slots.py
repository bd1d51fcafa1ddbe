"""Limit on reports made at the same time: a large one occupies a processor that also serves calls.

Exports do not count: they are made one after the other, in the background.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fairserve.platform.base.errors import RateLimitedError

MAX_REPORTS = 12
"""Reports over all tenants: fewer than the threads that answer other requests."""
MAX_REPORTS_PER_TENANT = 4
RETRY_S = 1


class ReportSlots:
    """Slots for the reports in progress, for use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def one(self, tenant_id: str | None) -> Iterator[None]:
        """Hold a slot during a report of the tenant; None is an operator's report over all tenants.

        Raises RateLimitedError at once instead of waiting: a waiter would occupy a thread.
        """
        with self._lock:
            of_tenant, of_all = self._taken[tenant_id], self._taken.total()
            if of_tenant >= MAX_REPORTS_PER_TENANT:
                raise _no_slot(f"{of_tenant} reports of this tenant")
            if of_all >= MAX_REPORTS:
                raise _no_slot(f"{of_all} reports")
            self._taken[tenant_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[tenant_id] -= 1
                if not self._taken[tenant_id]:
                    del self._taken[tenant_id]


def _no_slot(what: str) -> RateLimitedError:
    return RateLimitedError(
        f"{what} are being made, as many as allowed at a time; retry in {RETRY_S} s, or ask for an"
        " export",
        code="too_many_reports",
        headers={"Retry-After": str(RETRY_S)},
    )
