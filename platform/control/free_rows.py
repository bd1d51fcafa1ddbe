"""Bounds the rows that a tenant makes without using anything: rejected calls, and runs without a call.

Such rows cost their tenant nothing, so no quota limits them, and a client that repeats rejected calls
would fill the disk. Each tenant has a bucket of ``MOST_ROWS``, which gains ``ROWS_PER_HOUR``. While it
is empty a rejected call is answered and counted as ever, but has no row, and no run can be opened ahead
of its calls. Rows of accepted calls are not affected. Cost: O(1) for each row.

Weakness: usage reports lack the rejections without a row; the metrics have all of them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from fairserve.interactions.errors import OpeningRateError

logger = logging.getLogger(__name__)

MOST_ROWS = 2_000
ROWS_PER_HOUR = 1_000
MAX_TENANTS = 10_000
"""Buckets that are kept: those of the tenants that made such a row last."""


@dataclass(slots=True)
class _Bucket:
    rows: float
    at_s: float
    """Monotonic time at which it had ``rows``."""
    announced: bool = False
    """The log states that it is empty."""


class FreeRows:
    """The buckets of all tenants. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, tenant: str, now_s: float) -> bool:
        """Take a row from the tenant's bucket; return false if it is empty."""
        bucket = self._bucket(tenant, now_s)
        if bucket.rows >= 1:
            bucket.rows -= 1
            bucket.announced = bucket.announced and bucket.rows < MOST_ROWS / 2
            return True
        if not bucket.announced:
            logger.warning(
                "tenant %s has over %d rejected calls or empty runs: more have no row until it has"
                " fewer than %d an hour",
                tenant,
                MOST_ROWS,
                ROWS_PER_HOUR,
            )
            bucket.announced = True
        return False

    def require(self, tenant: str, now_s: float) -> None:
        """Raise OpeningRateError while the tenant's bucket is empty."""
        bucket = self._bucket(tenant, now_s)
        if bucket.rows < 1:
            raise OpeningRateError(
                f"the tenant has opened over {MOST_ROWS:,} interactions without a call, or has as many"
                f" rejected calls; allowed: {ROWS_PER_HOUR:,} an hour",
                (1 - bucket.rows) * 3600 / ROWS_PER_HOUR,
            )

    def _bucket(self, tenant: str, now_s: float) -> _Bucket:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._buckets[tenant] = _Bucket(MOST_ROWS, now_s)
            if len(self._buckets) > MAX_TENANTS:
                self._buckets.popitem(last=False)
            return bucket
        self._buckets.move_to_end(tenant)
        gained = (now_s - bucket.at_s) * ROWS_PER_HOUR / 3600
        bucket.rows, bucket.at_s = min(MOST_ROWS, bucket.rows + gained), now_s
        return bucket
