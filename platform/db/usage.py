"""Rollups of the ledger, from which usage reports are computed, and marks of stale rollups.

Each table has the same history at six levels: quarter hours and UTC days, each by user, by app (sum
over users, ``user_id`` empty) and by tenant (sum over apps and models, too). The days and hours of
every time zone consist of quarter hours. A row is a sum over raw rows, is recomputed when they
change, and outlives them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base
from fairserve.platform.db.ledger import WIDE_ID_CHARS

LEVEL_CHARS = 16
QUARTER_S = 900
"""Seconds of the finest level."""


class RollupColumns:
    """The columns that all rollups have first."""

    level: Mapped[str] = mapped_column(String(LEVEL_CHARS), primary_key=True, sort_order=-1)
    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True, sort_order=-1)
    start_s: Mapped[int] = mapped_column(
        BigInteger, primary_key=True, autoincrement=False, sort_order=-1
    )
    """Start of the quarter hour or day, in UTC epoch seconds."""
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True, sort_order=-1)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True, sort_order=-1)

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Index]:  # noqa: N805
        return (Index(None, "level", "start_s"),)


class UsageCalls(RollupColumns, Base):
    """Calls by time of acceptance. Sums cover charged calls; ``uncharged_calls`` counts the others."""

    __tablename__ = "usage_calls"
    model: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    """Model that served the call, else the requested one."""
    service_tier: Mapped[str] = mapped_column(String(16), primary_key=True)
    """Empty in the level of tenants, which sums over tiers."""
    calls: Mapped[int] = mapped_column(BigInteger)
    completed: Mapped[int] = mapped_column(BigInteger)
    refused: Mapped[int] = mapped_column(BigInteger)
    cancelled: Mapped[int] = mapped_column(BigInteger)
    failed: Mapped[int] = mapped_column(BigInteger)
    expired: Mapped[int] = mapped_column(BigInteger)
    uncharged_calls: Mapped[int] = mapped_column(BigInteger)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    """Prompt tokens without ``system_tokens``; reports count whole prompts."""
    system_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    extend_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger)
    """Part of ``output_tokens``."""
    service: Mapped[float]
    wasted_tokens: Mapped[int] = mapped_column(BigInteger)
    cost: Mapped[int] = mapped_column(BigInteger)
    """Nanounits of the currency."""
    unpriced_calls: Mapped[int] = mapped_column(BigInteger)
    """Calls with tokens of a model that had no price."""
    queue_delay_count: Mapped[int] = mapped_column(BigInteger)
    ttft_count: Mapped[int] = mapped_column(BigInteger)
    queue_delay_digest: Mapped[bytes | None] = mapped_column(LargeBinary)
    """A t-digest of seconds (:mod:`fairserve.platform.reporting.usage.digests`), as ``ttft_digest``."""
    ttft_digest: Mapped[bytes | None] = mapped_column(LargeBinary)


class UsageRuns(RollupColumns, Base):
    """Interactions by time of their end."""

    __tablename__ = "usage_runs"
    complete: Mapped[int] = mapped_column(BigInteger)
    aborted: Mapped[int] = mapped_column(BigInteger)
    cancelled: Mapped[int] = mapped_column(BigInteger)
    expired: Mapped[int] = mapped_column(BigInteger)
    run_calls: Mapped[int] = mapped_column(BigInteger)
    wasted_throttled: Mapped[int] = mapped_column(BigInteger)
    """Wasted tokens of runs that ended because of throttling; the next three columns by cause."""
    wasted_cancelled: Mapped[int] = mapped_column(BigInteger)
    wasted_failed: Mapped[int] = mapped_column(BigInteger)
    wasted_expired: Mapped[int] = mapped_column(BigInteger)


class UsageRejections(RollupColumns, Base):
    """Rejections by reason and time."""

    __tablename__ = "usage_refusals"
    reason: Mapped[str] = mapped_column(String(64), primary_key=True)
    count: Mapped[int] = mapped_column(BigInteger)
    mid_run: Mapped[int] = mapped_column(BigInteger)
    """Number of these whose run was in progress."""


class UsageDirty(Base):
    """A quarter hour of an app whose raw rows changed after its last rollup."""

    __tablename__ = "usage_dirty"

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    start_s: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    marks: Mapped[int] = mapped_column(BigInteger)
    """Number of marks since the last rollup."""


class UsageState(Base):
    """State of the rollups, one row. Its lock serialises the writers of rollups."""

    __tablename__ = "usage_state"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    rolled_up_s: Mapped[float]
    """UTC epoch second; rows committed before it are in the rollups."""
    raw_from_s: Mapped[int] = mapped_column(BigInteger)
    """First day with complete raw rows, in UTC epoch seconds; earlier rollups never change."""
