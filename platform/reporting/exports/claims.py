"""Who makes an export: one process at a time, with a lease that it extends while it goes on.

A claim is an attempt with a number of its own. Whatever an attempt writes it writes together with a
check that it is still the one in the row, so an attempt that was taken over, cancelled or voided by an
erasure changes nothing any more. Tenants take turns: next is the one whose last turn is longest ago.

Weakness: leases are told by the clocks of processes, so clocks must agree to well within a lease.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, aliased

from fairserve.platform.db.base import TEXT_CHARS
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.upsert import fitting_text
from fairserve.platform.reporting.exports import repository

LEASE = timedelta(seconds=60)
MAX_LOST = 3
"""Attempts that end without a word: then the export fails."""
BEAT_S = 15.0

Now = Callable[[], datetime]


class LostError(Exception):
    """The attempt is no longer the one that counts: its export was deleted, voided or taken over."""


def claim(sessions: SessionFactory, now: Now, kept: timedelta) -> ReportExport | None:
    """Take the next export that waits, or whose attempt was lost. None if there is none.

    It is ``running`` then, or ``failed`` if that was its last attempt; ``kept`` is for how long a
    finished one is.
    """
    with sessions.begin() as session:
        at = now()
        export = session.scalars(_next(at)).one_or_none()
        if export is None:
            return None
        if export.state == "running":
            export.lost += 1
        export.size_bytes = 0
        if export.lost >= MAX_LOST:
            export.state = "failed"
            export.error = (
                f"{export.lost} attempts to make it were broken off: a process was killed or ran out"
                " of memory; ask for less, or again"
            )
            export.lease_until, export.progress = None, None
            export.finished_at, export.expires_at = at, at + kept
            return export
        export.state = "running"
        export.attempt += 1
        export.started_at, export.lease_until = at, at + LEASE
        export.progress = None
        return export


def _next(at: datetime) -> Select[ReportExport]:
    other = aliased(ReportExport)
    last_turn = (
        select(func.max(other.started_at))
        .where(
            other.tenant_id.is_not_distinct_from(ReportExport.tenant_id),
            (other.asked_by == "operator") == (ReportExport.asked_by == "operator"),
        )
        .scalar_subquery()
    )
    lost = and_(ReportExport.state == "running", ReportExport.lease_until < at)
    return (
        select(ReportExport)
        .where(or_(ReportExport.state == "queued", lost))
        .order_by(last_turn.asc().nulls_first(), ReportExport.created_at, ReportExport.id)
        .limit(1)
        .with_for_update(of=ReportExport, skip_locked=True)
        .execution_options(populate_existing=True)
    )


def hold(session: Session, export: ReportExport, now: Now, **values: object) -> None:
    """Extend the lease of an attempt and set other values; the row is locked until the commit.

    Raises LostError if another attempt counts.
    """
    found = repository.change(session, _mine(export), lease_until=now() + LEASE, **values)
    if not found:
        raise LostError


def release(sessions: SessionFactory, export: ReportExport) -> None:
    """Release the lease: another worker makes the export. The attempt does not count as lost."""
    with sessions.begin() as session:
        repository.change(
            session, _mine(export), state="queued", lease_until=None, progress=None, size_bytes=0
        )


def end(
    sessions: SessionFactory,
    export: ReportExport,
    now: Now,
    kept: timedelta,
    *,
    error: str,
    sha256: str | None,
) -> None:
    """Finish an attempt: as ready, or where there is an ``error`` as failed.

    Doing it again changes nothing. Raises LostError if another attempt counts.
    """
    at = now()
    error = fitting_text(error, TEXT_CHARS)
    state = "failed" if error else "ready"
    with sessions.begin() as session:
        ended = repository.change(
            session,
            _mine(export),
            state=state,
            error=error,
            lease_until=None,
            finished_at=at,
            expires_at=at + kept,
            progress=None if error else 1.0,
            size_bytes=0 if error else ReportExport.size_bytes,
            sha256=sha256,
        )
        if not ended:
            row = session.get(ReportExport, export.id)
            # A commit whose answer was lost has happened all the same.
            if row is None or (row.attempt, row.state) != (export.attempt, state):
                raise LostError


@contextlib.contextmanager
def beating(sessions: SessionFactory, export: ReportExport, now: Now) -> Iterator[None]:
    """Extend the lease from a thread: one statement of a report may take longer than a lease."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            try:
                with sessions.begin() as session:
                    hold(session, export, now)
            except LostError:
                return
            except SQLAlchemyError:
                continue  # what is written next meets the same trouble, and deals with it

    thread = threading.Thread(target=beat, name=f"lease of {export.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _mine(export: ReportExport) -> list[ColumnElement[bool]]:
    return [
        ReportExport.id == export.id,
        ReportExport.attempt == export.attempt,
        ReportExport.state == "running",
    ]
