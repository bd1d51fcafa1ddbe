"""Limit on concurrent reports: a large one occupies a core that also serves calls.

Exports do not count: they run one after the other, in the background.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fairserve.platform.base.errors import RateLimitedError

MAX_REPORTS = 12
"""Maximum concurrent reports; lower than the number of request threads."""
MAX_REPORTS_PER_TENANT = 4
RETRY_S = 1


class ReportSlots:
    """Slots of concurrent reports, for use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def one(self, tenant_id: str | None) -> Iterator[None]:
        """Occupy a slot during a report of the tenant; None is an operator's report over all tenants.

        Raises RateLimitedError instead of waiting, which would occupy a thread.
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
        f"{what} are running, which is the limit; retry in {RETRY_S} s, or request an export",
        code="too_many_reports",
        headers={"Retry-After": str(RETRY_S)},
    )
