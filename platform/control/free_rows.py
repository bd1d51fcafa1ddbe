"""Bounds the rows that a tenant makes without using anything: calls and runs without a token.

A call that is rejected, also by its worker, or that ends before a worker computes anything costs its
tenant nothing, and neither does a run of such calls. So no quota limits their rows, and a client that
repeats them would fill the disk. One rule bounds them all: a row without tokens takes from its tenant's
bucket of ``MOST_ROWS``, which gains ``ROWS_PER_HOUR``. While it is empty, such calls share a row with
those of their app, model, tier, outcome and reason in the same quarter hour, so that reports still count
each; runs share one by app and state. Calls and runs that used something have rows of their own, always.

A shared row is written again with each of its calls, under its id, so a ledger that repeats a part of
the journal counts none twice. After a restart, and for a tenant with over its share of ``MAX_SHARED``
shared rows at a time, another one begins. Cost: O(log tenants) for each call without a token.

Weakness: a shared row has no user, run, times or parents; what is computed by user or by run lacks its
calls. A run that shares a row and is reopened later counts again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.control.record import values_of

logger = logging.getLogger(__name__)

MOST_ROWS = 2_000
ROWS_PER_HOUR = 1_000
MAX_TENANTS = 10_000
"""Buckets that are kept: those of the tenants that made such a row last."""
MAX_SHARED = 100_000
"""Shared rows that can grow at a time, over all tenants."""
_Key = tuple[Any, ...]
"""Values that the calls or runs of a shared row have in common."""
QUARTER_S = 900
"""Seconds of which reports have sums."""


@dataclass(slots=True)
class _Bucket:
    rows: float
    at_s: float
    """Monotonic time at which it had ``rows``."""
    announced: bool = False
    """The log states that it is empty."""


@dataclass(slots=True)
class _Shared:
    row_id: str
    sharing: int = 0
    """Calls or runs that share the row."""
    calls: int = 0
    """Calls of the runs."""


_BUCKET, _SHARED = values_of(_Bucket), values_of(_Shared)


class FreeRows:
    """The buckets and shared rows of all tenants. Times are monotonic seconds."""

    def __init__(self, seed: int = 0) -> None:
        """``seed`` distinguishes the ids of shared rows from those of other servers and starts."""
        self._seed = seed
        self._made = 0
        """Number of shared rows that were begun."""
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._shared: SharedTable[_Key, _Shared] = SharedTable(MAX_SHARED)

    def take(self, tenant: str, now_s: float) -> bool:
        """Take a row from the tenant's bucket; return false if it is empty."""
        bucket = self._bucket(tenant, now_s)
        if bucket.rows >= 1:
            bucket.rows -= 1
            bucket.announced = bucket.announced and bucket.rows < MOST_ROWS / 2
            return True
        if not bucket.announced:
            logger.warning(
                "tenant %s has over %d calls and runs that used nothing: more share rows until it has"
                " fewer than %d an hour",
                tenant,
                MOST_ROWS,
                ROWS_PER_HOUR,
            )
            bucket.announced = True
        return False

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

    def share_call(self, record: CallRecord, now_s: float) -> CallRecord:
        """Return the row that a call without tokens shares, with the call counted."""
        shared = self._row(
            record.tenant,
            (
                record.tenant,
                record.app,
                record.served_model,
                record.service_tier,
                record.outcome,
                record.refusal_reason,
                record.charged,
                record.mid_run,
                record.accepted_at // QUARTER_S,
            ),
            now_s,
        )
        return CallRecord(
            call_id=shared.row_id,
            tenant=record.tenant,
            app=record.app,
            user="",
            model=record.served_model,
            interaction_id="",
            stage=1,
            agent=None,
            outcome=record.outcome,
            accepted_at=record.accepted_at,
            ended_at=record.ended_at,
            served_model=record.served_model,
            service_tier=record.service_tier,
            charged=record.charged,
            refusal_reason=record.refusal_reason,
            mid_run=record.mid_run,
            shared_by=shared.sharing,
        )

    def share_run(self, record: InteractionRecord, now_s: float) -> InteractionRecord:
        """Return the record of a run without tokens with the row that it shares."""
        quarter = record.ended_at // QUARTER_S
        key = (record.tenant, record.app, record.state, quarter)
        shared = self._row(record.tenant, key, now_s)
        shared.calls += record.calls
        return replace(
            record,
            user="",
            opened_at=record.ended_at,
            calls=shared.calls,
            row_id=shared.row_id,
            shared_by=shared.sharing,
        )

    def _row(self, tenant: str, key: _Key, now_s: float) -> _Shared:
        shared = self._shared.get(key, now_s)
        if shared is None:
            self._made += 1
            name = f"{self._seed}/{now_s!r}/{self._made}".encode()
            shared = _Shared(f"shared_{blake2b(name, digest_size=16).hexdigest()}")
            self._shared.expire(now_s)
            self._shared.put((tenant,), key, shared, now_s + 2.0 * QUARTER_S)
        shared.sharing += 1
        return shared

    # --- state ------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "made": self._made,
            "buckets": [[tenant, *_BUCKET(each)] for tenant, each in self._buckets.items()],
            "shared": self._shared.snapshot(lambda key, row: [list(key), *_SHARED(row)]),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._made = state["made"]
        self._buckets = OrderedDict(
            (tenant, _Bucket(*plain)) for tenant, *plain in state["buckets"]
        )
        self._shared.restore(state["shared"], lambda plain: (tuple(plain[0]), _Shared(*plain[1:])))
