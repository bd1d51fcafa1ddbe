"""Queries on batches and their results. Queries for a key are scoped to its app.

Every write of the process that runs a batch is fenced by the number of its claim
(:mod:`fairserve.platform.db.leases`), so that a line's result is written once, by one process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.db.batches import Batch, BatchResult
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.leases import LeasedTable
from fairserve.platform.db.rows import delete_some
from fairserve.platform.serving.claims import LEASE
from fairserve.platform.serving.files.repository import UNFINISHED, FileOwner, beyond

BATCHES = LeasedTable(Batch, unfinished=UNFINISHED, attempts="attempt", fence=("attempt",))
DELETED_RESULTS = 500
"""Results that one transaction deletes."""
READ_RESULTS = 100
"""Results that one transaction reads."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one line."""

    line: int
    succeeded: bool
    data: bytes


# --- requests -----------------------------------------------------------------------------------------


def find(session: Session, owner: FileOwner, batch_id: str, *, lock: bool = False) -> Batch | None:
    """Return a batch of an app."""
    statement = select(Batch).where(
        Batch.id == batch_id, Batch.tenant_id == owner.tenant, Batch.app_id == owner.app
    )
    return session.scalars(statement.with_for_update() if lock else statement).one_or_none()


def page(session: Session, owner: FileOwner, after: str | None, limit: int) -> Sequence[Batch]:
    """Return batches of an app, newest first, from one on. Raises InvalidRequestError, as of files."""
    where = [Batch.tenant_id == owner.tenant, Batch.app_id == owner.app]
    if after is not None:
        last = session.execute(
            select(Batch.created_at, Batch.id).where(Batch.id == after, *where)
        ).one_or_none()
        if last is None:
            raise InvalidRequestError("after: there is no such batch", param="after")
        where.append(beyond(Batch.created_at, Batch.id, last, ascending=False))
    order = (Batch.created_at.desc(), Batch.id.desc())
    return session.scalars(select(Batch).where(*where).order_by(*order).limit(limit)).all()


def unfinished(session: Session, app_id: str) -> int:
    """Return the number of an app's batches that have not ended."""
    return (
        session.scalar(
            select(func.count(Batch.id)).where(Batch.app_id == app_id, Batch.state.in_(UNFINISHED))
        )
        or 0
    )


# --- claims -------------------------------------------------------------------------------------------


def claim(
    sessions: SessionFactory, running: Collection[Batch], places: SharedLimit, now: datetime
) -> Batch | None:
    """Claim the oldest waiting batch of the tenant that runs the fewest here; None if there is none.

    ``running`` are the batches that this process runs, ``places`` what they use.
    """
    own = {(batch.id,): batch.tenant_id for batch in running}
    full = [tenant for tenant in set(own.values()) if places.full(tenant)]
    claimed = BATCHES.claim(sessions, own, now, LEASE, full=full)
    return claimed[0] if claimed else None


def renew(
    sessions: SessionFactory, running: Collection[Batch], now: datetime
) -> tuple[set[str], set[str]]:
    """Renew the leases of batches. Return those that were lost, and those that were cancelled.

    The batches of an app or tenant that was suspended or deleted are cancelled.
    """
    with sessions.begin() as session:
        leases = [BATCHES.lease(batch) for batch in running]
        lost = {lease.key[0] for lease in BATCHES.renew_all(session, leases, now, LEASE)}
        ids = [batch.id for batch in running]
        session.execute(
            update(Batch)
            .where(
                Batch.id.in_(ids),
                Batch.state.in_(("validating", "in_progress")),
                Batch.app_id.in_(_stopped_apps()),
            )
            .values(state="cancelling", cancelling_at=now),
            execution_options={"synchronize_session": False},
        )
        cancelled = select(Batch.id).where(Batch.id.in_(ids), Batch.state == "cancelling")
        return lost, set(session.scalars(cancelled))


def _stopped_apps() -> Any:
    return (
        select(App.id)
        .join(Tenant, Tenant.id == App.tenant_id)
        .where(
            or_(
                App.deleted_at.is_not(None),
                App.suspended_at.is_not(None),
                Tenant.deleted_at.is_not(None),
                Tenant.suspended_at.is_not(None),
            )
        )
    )


def set_values(session: Session, batch: Batch, now: datetime, **values: object) -> None:
    """Write columns of a claimed batch, here and in the database. Raises RowLeaseLostError.

    The caller commits.
    """
    BATCHES.lease(batch).renew(session, now + LEASE, **values)
    for name, value in values.items():
        setattr(batch, name, value)


def begin(sessions: SessionFactory, batch: Batch, now: datetime, total: int) -> None:
    """Begin to run a checked batch, unless it was cancelled. Raises RowLeaseLostError."""
    with sessions.begin() as session:
        set_values(session, batch, now, total=total, in_progress_at=now)
        session.execute(
            update(Batch)
            .where(Batch.id == batch.id, Batch.state == "validating")
            .values(state="in_progress"),
            execution_options={"synchronize_session": False},
        )


def release(sessions: SessionFactory, batch: Batch) -> None:
    """End the lease of a batch that has not ended: any process may continue it."""
    with sessions.begin() as session:
        BATCHES.lease(batch).end(session)


# --- results ------------------------------------------------------------------------------------------


def ended_lines(sessions: SessionFactory, batch_id: str) -> set[int]:
    """Return the numbers of the lines that have a result."""
    with sessions() as session:
        return set(
            read_only(session).scalars(
                select(BatchResult.line).where(BatchResult.batch_id == batch_id)
            )
        )


def save(sessions: SessionFactory, batch: Batch, results: Sequence[Result], now: datetime) -> None:
    """Write results and the counts of a batch in one transaction. Raises RowLeaseLostError.

    Results that were written before are skipped: a commit may have succeeded although its answer was
    lost.
    """
    with sessions.begin() as session:
        # The fence first: it locks the row, so that no other process writes results.
        set_values(session, batch, now)
        numbers = [result.line for result in results]
        known = set(
            session.scalars(
                select(BatchResult.line).where(
                    BatchResult.batch_id == batch.id, BatchResult.line.in_(numbers)
                )
            )
        )
        new = [result for result in results if result.line not in known]
        if new:
            session.execute(
                insert(BatchResult),
                [
                    {
                        "batch_id": batch.id,
                        "line": result.line,
                        "succeeded": result.succeeded,
                        "data": result.data,
                    }
                    for result in new
                ],
            )
        succeeded = sum(result.succeeded for result in new)
        session.execute(
            update(Batch)
            .where(Batch.id == batch.id)
            .values(
                completed=Batch.completed + succeeded,
                failed=Batch.failed + len(new) - succeeded,
                result_bytes=Batch.result_bytes + sum(len(result.data) for result in new),
            ),
            execution_options={"synchronize_session": False},
        )


def results(sessions: SessionFactory, batch_id: str, *, succeeded: bool) -> Iterator[bytes]:
    """Yield the results of one kind in the order of their lines, in short transactions."""
    last = 0
    while True:
        with sessions() as session:
            rows = (
                read_only(session)
                .execute(
                    select(BatchResult.line, BatchResult.data)
                    .where(
                        BatchResult.batch_id == batch_id,
                        BatchResult.succeeded == succeeded,
                        BatchResult.line > last,
                    )
                    .order_by(BatchResult.line)
                    .limit(READ_RESULTS)
                )
                .all()
            )
        yield from (data for _, data in rows)
        last = rows[-1][0] if rows else last
        if len(rows) < READ_RESULTS:
            return


def delete_results(sessions: SessionFactory, batch_id: str) -> None:
    """Delete the results of an ended batch, in short transactions."""
    while True:
        with sessions.begin() as session:
            lines = session.scalars(
                select(BatchResult.line)
                .where(BatchResult.batch_id == batch_id)
                .limit(DELETED_RESULTS)
            ).all()
            if not lines:
                session.execute(update(Batch).where(Batch.id == batch_id).values(result_bytes=0))
                return
            session.execute(
                delete(BatchResult).where(
                    BatchResult.batch_id == batch_id, BatchResult.line.in_(lines)
                )
            )


def delete_leftovers(sessions: SessionFactory, *, max_batches: int = 10) -> int:
    """Delete the results of batches whose server stopped before it could; return their number."""
    with sessions() as session:
        ended = select(Batch.id).where(Batch.ended_at.is_not(None), Batch.result_bytes > 0)
        found = read_only(session).scalars(ended.limit(max_batches)).all()
    for batch_id in found:
        delete_results(sessions, batch_id)
    return len(found)


def delete_before(session: Session, time: datetime, *, max_rows: int = 100) -> int:
    """Delete batches that ended before a time, with results that are left. The caller commits."""
    return delete_some(session, Batch, Batch.ended_at < time, max_rows)
