"""Claims of exports: one process at a time runs an export, and renews its lease until the end.

The number of an attempt fences its writes (:mod:`fairserve.platform.db.leases`): an attempt that lost
its lease, was cancelled or voided by an erasure changes nothing. Tenants are scheduled round-robin: the
next export is that of the tenant whose last attempt started longest ago.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, aliased

from fairserve.platform.db.base import TEXT_CHARS
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.leases import LeasedTable, RowLeaseLostError, renewing
from fairserve.platform.db.upsert import fitting_text
from fairserve.platform.reporting.exports.repository import UNFINISHED

EXPORTS = LeasedTable(
    ReportExport, unfinished=UNFINISHED, attempts="attempt", fence=("attempt", "state")
)
LEASE = timedelta(seconds=60)
RENEWAL_INTERVAL_S = 15.0
MAX_LOST = 3
"""Number of attempts with an expired lease after which an export fails."""

Now = Callable[[], datetime]


def claim(sessions: SessionFactory, now: Now, kept: timedelta) -> ReportExport | None:
    """Claim the next queued export or one with an expired lease; return None if there is none.

    It becomes ``running``, or ``failed`` if that was its last attempt. A finished export is kept for
    ``kept``.
    """
    with sessions.begin() as session:
        at = now()
        export = session.scalars(EXPORTS.due(_by_turn(), at)).one_or_none()
        if export is None:
            return None
        if export.state == "running":
            export.lost += 1
        export.size_bytes, export.progress = 0, None
        if export.lost >= MAX_LOST:
            export.state = "failed"
            export.error = (
                f"{export.lost} attempts were interrupted: the process was killed or ran out of memory;"
                " request a smaller export, or retry"
            )
            export.lease_until = None
            export.finished_at, export.expires_at = at, at + kept
            return export
        EXPORTS.take(export, at, LEASE)
        export.state, export.started_at = "running", at
        return export


def _by_turn() -> Select[ReportExport]:
    other = aliased(ReportExport)
    last_turn = (
        select(func.max(other.started_at))
        .where(
            other.tenant_id.is_not_distinct_from(ReportExport.tenant_id),
            (other.asked_by == "operator") == (ReportExport.asked_by == "operator"),
        )
        .scalar_subquery()
    )
    return (
        select(ReportExport)
        .order_by(last_turn.asc().nulls_first(), ReportExport.created_at, ReportExport.id)
        .limit(1)
    )


def renew(session: Session, export: ReportExport, now: Now, **values: object) -> None:
    """Renew the lease of an attempt and set other columns; the row is locked until the commit.

    Raises RowLeaseLostError if another attempt holds the export.
    """
    EXPORTS.lease(export).renew(session, now() + LEASE, **values)


def renewing_lease(
    sessions: SessionFactory, export: ReportExport, now: Now
) -> AbstractContextManager[None]:
    """Renew the lease in a thread, as one statement of a report may take longer than a lease."""
    return renewing(
        sessions,
        lambda session: renew(session, export, now),
        every_s=RENEWAL_INTERVAL_S,
        name=f"lease of {export.id}",
    )


def release(sessions: SessionFactory, export: ReportExport) -> None:
    """Release the lease and requeue the export. The attempt does not count as lost."""
    with sessions.begin() as session:
        EXPORTS.lease(export).end(session, state="queued", progress=None, size_bytes=0)


def end(
    sessions: SessionFactory,
    export: ReportExport,
    now: Now,
    kept: timedelta,
    *,
    error: str,
    sha256: str | None,
) -> None:
    """Finish an attempt as ``ready``, or with an ``error`` as ``failed``.

    Idempotent. Raises RowLeaseLostError if another attempt holds the export.
    """
    at = now()
    error = fitting_text(error, TEXT_CHARS)
    state = "failed" if error else "ready"
    with sessions.begin() as session:
        ended = EXPORTS.lease(export).end(
            session,
            state=state,
            error=error,
            finished_at=at,
            expires_at=at + kept,
            progress=None if error else 1.0,
            size_bytes=0 if error else ReportExport.size_bytes,
            sha256=sha256,
        )
        if not ended:
            row = session.get(ReportExport, export.id)
            # A commit may have succeeded although its response was lost.
            if row is None or (row.attempt, row.state) != (export.attempt, state):
                raise RowLeaseLostError
