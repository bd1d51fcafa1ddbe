"""Retention of raw rows and rollups.

Raw rows are deleted by UTC days, and only after their rollup: a quarter hour is never recomputed from an
incomplete set of rows.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from fairserve.platform.db.erasures import Erasure
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction, ThrottlingEvent
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.rows import changed, delete_some
from fairserve.platform.db.usage import UsageDirty, UsageState
from fairserve.platform.reporting.usage.levels import DAY_S, LEVELS, TABLES


def raw_rows_from(session: Session, wanted: datetime) -> datetime:
    """Release raw rows before ``wanted``; return the time before which they may be deleted.

    It is a UTC midnight, earlier than ``wanted`` while marks remain. Commit before the deletion: then no
    process sums those rows.
    """
    state = session.scalars(select(UsageState).with_for_update()).one()
    oldest_s = session.scalar(
        select(func.min(UsageDirty.start_s)).where(UsageDirty.start_s >= state.raw_from_s)
    )
    until_s = wanted.timestamp() if oldest_s is None else min(wanted.timestamp(), oldest_s)
    state.raw_from_s = max(state.raw_from_s, int(until_s) // DAY_S * DAY_S)
    return datetime.fromtimestamp(state.raw_from_s, UTC)


def delete_before(session: Session, time: datetime, *, max_rows: int = 10_000) -> int:
    """Delete rows older than ``time``: calls, rejections, interactions, audit, erasures, ended keys.

    Deletes at most ``max_rows`` of each, to keep the transaction short, and returns the number. Call it
    again in a new transaction until that is 0.
    """
    ended_keys = or_(ApiKey.revoked_at < time, ApiKey.expires_at < time)
    old = (
        (LedgerCall, LedgerCall.accepted_at < time),
        (ThrottlingEvent, ThrottlingEvent.at < time),
        (LedgerInteraction, LedgerInteraction.ended_at < time),
        (AuditEntry, AuditEntry.at < time),
        (Erasure, Erasure.erased_at < time),
        (ApiKey, (ApiKey.scope != "admin") & ended_keys),
    )
    return sum(delete_some(session, model, where, max_rows) for model, where in old)


def delete_rollups_before(session: Session, time: datetime) -> int:
    """Delete the oldest day of each level if it ended before ``time``; return the number of rows.

    The caller commits, and calls again until that is 0.
    """
    before_s = int(time.timestamp()) // DAY_S * DAY_S
    deleted = 0
    for table in (rollup.table for rollup in TABLES):
        for level in LEVELS:
            of_level = table.c.level == level
            oldest_s = session.scalar(select(func.min(table.c.start_s)).where(of_level))
            if oldest_s is None or oldest_s >= before_s:
                continue
            until_s = oldest_s // DAY_S * DAY_S + DAY_S
            deleted += changed(session, delete(table).where(of_level, table.c.start_s < until_s))
    return deleted
