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

Servers hold many rows for long: :meth:`LeasedTable.claim` takes the next ones by tenant, and
:meth:`LeasedTable.renew_all` renews them together. The only server of a database need not wait
for the leases of the one before: :meth:`LeasedTable.void` ends them.

Cost: one SELECT and one UPDATE for a claim, one UPDATE for each renewal and for the end.
A time beyond ``LONGEST_LEASE`` or ``LONGEST_WAIT`` was written before the clock went back, and is void.
Weakness: a lease expires by the clocks of the processes, which must agree to well within its duration.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Select, Table, and_, delete, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from fairserve.platform.db.base import Base
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.many_keys import in_keys, key_parameter
from fairserve.platform.db.rows import changed

Row = TypeVar("Row", bound=Base)
Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])
Key = tuple[Any, ...]
"""Values of a primary key."""


class RowLeaseLostError(Exception):
    """The row was deleted, or the lease on it was lost."""


LONGEST_LEASE = timedelta(hours=1)
LONGEST_WAIT = timedelta(days=2)
"""Upper bound of the pause before the next attempt at a row."""
MAX_SEEN = 1_000
"""Waiting rows among which a claim selects."""


@dataclass(frozen=True, slots=True)
class LeasedTable(Generic[Row]):
    """A table of work items with a column ``lease_until``, and the names of the others."""

    model: type[Row]
    unfinished: tuple[str, ...]
    """States of rows that wait for work or are being worked on."""
    attempts: str | None
    """Column that counts attempts; None: a row has one holder, which inserts it."""
    fence: tuple[str, ...]
    """Columns that together differ between any two claims of a row: a count that is never reset, with
    the state that a claim sets; or ``lease_until``, if leases are not renewed."""
    due_at: str | None = None
    """Column with the time before which a row is not due; None: all unfinished rows are due."""
    state: str = "state"

    def waiting(self, now: datetime) -> ColumnElement[bool]:
        """Return the condition for rows that are due and have no valid lease."""
        column = self._column
        found = [
            column(self.state).in_(self.unfinished),
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
        assert self.attempts is not None, "its rows are never claimed again"
        setattr(row, self.attempts, getattr(row, self.attempts) + 1)
        row.lease_until = now + duration  # type: ignore[attr-defined]  # a column of each such table

    def lease(self, row: Row) -> RowLease[Row]:
        """Return the lease that the row's current values represent."""
        return RowLease(self, {name: getattr(row, name) for name in (*self._key, *self.fence)})

    # --- many rows of one process -----------------------------------------------------------------

    def claim(
        self,
        sessions: SessionFactory,
        own: Mapping[Key, str],
        now: datetime,
        duration: timedelta,
        *,
        full: Collection[str] = (),
        most: int = 1,
    ) -> list[Row]:
        """Claim up to ``most`` rows, the oldest ones of the tenants that have the fewest here.

        ``own`` has the tenants of the rows that this process holds, ``full`` those that may have no
        more. The table has the columns ``tenant_id`` and ``created_at``.
        """
        key = [self._column(name) for name in self._key]
        tenant_id = self._column("tenant_id")
        waiting = (
            select(*key, tenant_id.label("tenant"))
            .where(self.waiting(now), tenant_id.not_in(full))
            .order_by(self._column("created_at"), *key)
            .limit(MAX_SEEN)
        )
        with sessions() as session:
            found = [tuple(row) for row in read_only(session).execute(waiting)]
        held = Counter(own.values())
        claimed: list[Row] = []
        for *values, _ in sorted(found, key=lambda each: held[each[-1]]):
            if len(claimed) == most:
                break
            if tuple(values) in own:
                continue
            with sessions.begin() as session:
                due = select(self.model).where(*map(operator.eq, key, values))
                row = session.scalars(self.due(due, now)).one_or_none()
                if row is not None:
                    self.take(row, now, duration)
                    claimed.append(row)
        return claimed

    def locked(self, session: Session, keys: Iterable[Key]) -> dict[Key, tuple[Any, ...]]:
        """Lock rows in the order of their keys; return the values of their keys and fences by key."""
        key = [self._column(name) for name in self._key]
        query = self._values(session).order_by(*key).with_for_update()
        rows = session.execute(query, key_parameter(keys))
        return {tuple(row[: len(key)]): tuple(row[:-1]) for row in rows}

    def renew_all(
        self,
        session: Session,
        leases: Collection[RowLease[Row]],
        now: datetime,
        duration: timedelta,
    ) -> list[RowLease[Row]]:
        """Extend leases of which a third is over; return those that are lost. The caller commits.

        A lease that its holder has ended since is neither extended nor lost.
        """
        rows = session.execute(self._values(session), key_parameter(each.key for each in leases))
        until = {tuple(row[:-1]): row[-1] for row in rows}
        fresh = now + duration * 2 / 3
        due = [each.key for each in leases if (until.get(each.values) or fresh) < fresh]
        if due:
            held = set(self.locked(session, due).values())
            keys = [each.key for each in leases if each.values in held]
            table = self.model.__table__
            assert isinstance(table, Table)
            which = in_keys(list(table.primary_key), session.get_bind().dialect.name)
            held_still = which & self._column("lease_until").is_not(None)
            extended = update(table).where(held_still).values(lease_until=now + duration)
            session.execute(extended, key_parameter(keys))
        return [each for each in leases if each.values not in until]

    def void(self, session: Session) -> None:
        """End the leases of processes that are known to have ended. The caller commits."""
        unfinished = self._column(self.state).in_(self.unfinished)
        held = self._column("lease_until").is_not(None)
        session.execute(update(self.model).where(unfinished, held).values(lease_until=None))

    def _values(self, session: Session) -> Select[*tuple[Any, ...]]:
        """Return the query for key, fence and end of lease of the rows of the parameter ``KEYS``."""
        names = (*self._key, *self.fence, "lease_until")
        which = in_keys([self._column(name) for name in self._key], session.get_bind().dialect.name)
        return select(*map(self._column, names)).where(which)

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.model.__table__.primary_key)

    def _column(self, name: str) -> Any:
        return getattr(self.model, name)


@dataclass(frozen=True, slots=True)
class RowLease(Generic[Row]):
    """One claim of a row, with the fence values for writes to it."""

    table: LeasedTable[Row]
    identity: dict[str, object] = field(repr=False)
    """Values of the primary key and of the fence."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values of the primary key and of the fence."""
        return tuple(self.identity.values())

    @property
    def key(self) -> Key:
        """Return the primary key."""
        return self.values[: len(self.identity) - len(self.table.fence)]

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

    def delete(self, session: Session) -> bool:
        """Delete the row; return whether the lease was still held. The caller commits."""
        return bool(changed(session, delete(self.table.model).where(*self._held())))

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
