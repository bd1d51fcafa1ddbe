"""Limit on concurrent reports: a large one occupies a core that also serves calls.

Exports do not count: they run one after the other, in the background.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fairserve.platform.base.errors import RateLimitedError
from fairserve.platform.base.shared_limit import SharedLimit

MAX_REPORTS = 12
"""Maximum concurrent reports; lower than the number of request threads."""
MAX_REPORTS_PER_TENANT = 4
"""Reports of a tenant while no other has one; fewer while others have some."""
RETRY_S = 1


class ReportSlots:
    """Slots of concurrent reports, for use from any thread."""

    def __init__(self) -> None:
        self._reports = SharedLimit(MAX_REPORTS, MAX_REPORTS_PER_TENANT / MAX_REPORTS)

    @contextmanager
    def one(self, sharer: str) -> Iterator[None]:
        """Occupy a slot during a report of a tenant, or of an operator.

        Raises RateLimitedError instead of waiting, which would occupy a thread.
        """
        full = self._reports.take(sharer)
        if full is not None:
            raise _no_slot(
                f"{self._reports.of(sharer)} reports of this tenant"
                if full == "owner"
                else f"{MAX_REPORTS} reports"
            )
        try:
            yield
        finally:
            self._reports.release(sharer)


def _no_slot(what: str) -> RateLimitedError:
    return RateLimitedError(
        f"{what} are running, which is the limit; retry in {RETRY_S} s, or request an export",
        code="too_many_reports",
        headers={"Retry-After": str(RETRY_S)},
    )
