"""Leases on rows: one process at a time works on a row, and a dead process loses its lease.

A background pass finds its work in a table and claims one row, or a few, in a short transaction:

1. :meth:`LeasedTable.due` selects the rows that wait for work and have no valid lease. It skips
   rows that another transaction has locked, so two processes never claim the same row.
2. :meth:`LeasedTable.take` writes the end of the lease into the row and counts the attempt. After the
   commit nothing is locked: the work itself holds no transaction open.
3. :meth:`RowLease.renew` extends a lease; :func:`renewing` does so from a thread during the work.
4. :meth:`RowLease.end` releases the row in its new state: finished, failed permanently, or waiting
   for the next attempt at a given time.

Every write of a holder is fenced: it applies only while the columns in :attr:`LeasedTable.fence` are
unchanged. A holder that lost its lease or was cancelled changes nothing.

Cost: one SELECT and one UPDATE for a claim, one UPDATE for each renewal and for the end.
A time beyond ``LONGEST_LEASE`` or ``LONGEST_WAIT`` was written before the clock went back, and is void.
Weakness: a lease expires by the clocks of the processes, which must agree to well within its duration.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, and_, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fairserve.platform.db.base import Base
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.rows import changed

Row = TypeVar("Row", bound=Base)
Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])


class RowLeaseLostError(Exception):
    """The row was deleted, or the lease on it was lost."""


LONGEST_LEASE = timedelta(hours=1)
LONGEST_WAIT = timedelta(days=2)
"""Upper bound of the pause before the next attempt at a row."""


@dataclass(frozen=True, slots=True)
class LeasedTable(Generic[Row]):
    """A table of work items with columns ``state`` and ``lease_until``, and the names of the others."""

    model: type[Row]
    unfinished: tuple[str, ...]
    """States of rows that wait for work or are being worked on."""
    attempts: str
    """Column that counts attempts."""
    fence: tuple[str, ...]
    """Columns that together differ between any two claims of a row: a count that is never reset, with
    the state that a claim sets; or ``lease_until``, if leases are not renewed."""
    due_at: str | None = None
    """Column with the time before which a row is not due; None: all unfinished rows are due."""

    def waiting(self, now: datetime) -> ColumnElement[bool]:
        """Return the condition for rows that are due and have no valid lease."""
        column = self._column
        found = [
            column("state").in_(self.unfinished),
            or_(
                column("lease_until").is_(None),
                column("lease_until") < now,
                column("lease_until") > now + LONGEST_LEASE,
            ),
        ]
        if self.due_at is not None:
            due = column(self.due_at)
            found.append(or_(due <= now, due > now + LONGEST_WAIT))
        return and_(*found)

    def due(self, statement: Statement, now: datetime) -> Statement:
        """Return the statement restricted to due rows of this table, which it locks."""
        return (
            statement.where(self.waiting(now))
            .with_for_update(of=self.model, skip_locked=True)
            .execution_options(populate_existing=True)
        )

    def take(self, row: Row, now: datetime, duration: timedelta) -> None:
        """Claim a row that :meth:`due` has locked. The caller sets its state and commits."""
        setattr(row, self.attempts, getattr(row, self.attempts) + 1)
        row.lease_until = now + duration  # type: ignore[attr-defined]  # a column of each such table

    def lease(self, row: Row) -> RowLease[Row]:
        """Return the lease that the row's current values represent."""
        key = tuple(column.name for column in self.model.__table__.primary_key)
        return RowLease(self, {name: getattr(row, name) for name in (*key, *self.fence)})

    def _column(self, name: str) -> Any:
        return getattr(self.model, name)


@dataclass(frozen=True, slots=True)
class RowLease(Generic[Row]):
    """One claim of a row, with the fence values for writes to it."""

    table: LeasedTable[Row]
    identity: dict[str, object] = field(repr=False)
    """Values of the primary key and of the fence."""

    def locked_row(self, session: Session) -> Row | None:
        """Return the row, locked until the commit, or None if the lease is lost."""
        return session.scalars(
            select(self.table.model).where(*self._held()).with_for_update()
        ).one_or_none()

    def renew(self, session: Session, until: datetime, **values: object) -> None:
        """Extend the lease and set other columns. Raises RowLeaseLostError. The caller commits."""
        if not self._update(session, lease_until=until, **values):
            raise RowLeaseLostError

    def end(self, session: Session, **values: object) -> bool:
        """Release the row and set other columns; return whether the lease was still held.

        The caller commits.
        """
        return self._update(session, lease_until=None, **values)

    def _update(self, session: Session, **values: object) -> bool:
        return bool(
            changed(session, update(self.table.model).where(*self._held()).values(**values))
        )

    def _held(self) -> list[ColumnElement[bool]]:
        return [getattr(self.table.model, name) == value for name, value in self.identity.items()]


@contextlib.contextmanager
def renewing(
    sessions: SessionFactory, renew: Callable[[Session], None], *, every_s: float, name: str
) -> Iterator[None]:
    """Run ``renew`` in a transaction every ``every_s`` seconds, in a thread called ``name``.

    Use it if one statement of the work may take longer than a lease. The thread ends with the context or
    when ``renew`` raises RowLeaseLostError; the holder's next write then raises it, too.
    """
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every_s):
            try:
                with sessions.begin() as session:
                    renew(session)
            except RowLeaseLostError:
                return
            except SQLAlchemyError:
                continue  # the holder's next write meets the same error and handles it

    thread = threading.Thread(target=beat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
