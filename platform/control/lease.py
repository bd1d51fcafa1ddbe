"""The lease of the database: only one server at a time writes it, until its lease ends by its own clock.

The database holds one row with the token of the holder and a counter of renewals. The holder renews it
several times within a lease. While it cannot, it serves until its lease ends by its own clock, counted
from *before* its last renewal was sent, and then accepts nothing new. Another server takes over only
after it has seen the row unchanged for a full lease, counted from *after* it read the row. So their
times never overlap, whatever their clocks show; the clocks must only run equally fast.

A takeover raises the token, and every transaction of this process that writes checks the token right
before its commit (:func:`fenced`): a write of a server that does not know yet that it was replaced
fails as if the database were unavailable.

A process that died is replaced at once where a lock proves its death: the holder's row names the lock
(``guard``) that its process holds while it lives, and a process that holds that lock is its successor.

Cost: one small statement for each transaction that writes, and one update in a sixth of a lease.
Weakness: a process that is suspended together with its clock (a paused virtual machine) admits calls for
up to a lease after it wakes, until its next renewal fails; it writes nothing any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Engine, Update, event, insert, select, update
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.storage import ServingRight
from fairserve.platform.db.base import NAME_CHARS, utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.operations import ServerLease

logger = logging.getLogger(__name__)

RENEWALS = 6
"""Renewals within a lease."""
RETRIES = 60
"""Attempts within a lease while the database does not answer."""
FASTER = "the database was just taken by another FairServe server"
_ROW = ServerLease.id == 1


def lease_clock() -> float:
    """Return seconds that include the time in suspension, where the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeldLease(NamedTuple):
    """The row of the lease; see the columns."""

    token: int
    beat: int
    holder: str
    guard: str
    lease_s: float
    renewed_at: datetime


class LeaseTakenError(Exception):
    """Another server holds the database. The message names it."""


class LeaseLostError(OperationalError):
    """Another server has taken over: nothing is committed. Callers see an unavailable database."""

    def __init__(self) -> None:
        super().__init__(None, None, RuntimeError("another server has taken over the database"))


class Lease:
    """The lease of one process. ``renew`` belongs to one thread; ``require`` may be called by any."""

    def __init__(
        self,
        engine: Engine,
        *,
        lease_s: float,
        holder: str,
        guard: str,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        """``engine`` serves only the lease, so that a renewal never waits for another query.

        ``holder`` is the name shown to operators; ``guard`` names the lock that the process holds.
        """
        self.lease_s = lease_s
        self.lost = threading.Event()
        """Set once another server has taken over; never cleared."""
        self.previous_alive_at: float | None = None
        """UTC epoch second of the previous holder's last renewal; None without a previous holder."""
        self._engine = engine
        self._holder, self._guard = holder[:NAME_CHARS], guard
        self._clock = clock
        self._token = 0
        self._until_s = 0.0
        self._seen: tuple[int, int] | None = None
        self._seen_s = 0.0
        self._failing = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._on_lost: Callable[[], object] = lambda: None

    # --- taking it --------------------------------------------------------------------------------

    def acquire(self, wait: Callable[[float], object] = time.sleep) -> None:
        """Acquire the lease; wait a full lease for a holder that does not renew it.

        Raises LeaseTakenError as soon as the holder has renewed it, and SQLAlchemyError.
        """
        announced = False
        while (other := self.try_acquire()) is not None:
            if not announced:
                logger.warning(
                    "the database was last held by %s; waiting for up to %g s to see whether it lives",
                    other.holder,
                    other.lease_s,
                )
                announced = True
            wait(min(1.0, other.lease_s / RETRIES))

    def try_acquire(self) -> HeldLease | None:
        """Acquire the lease if it is free; else return its row.

        Raises LeaseTakenError if the holder has renewed it since the first call.
        """
        began_s = self._clock()
        with self._engine.begin() as connection:
            row = _read(connection)
            if row is None or self._may_take(row):
                self._take(connection, row)
                self._until_s = began_s + self.lease_s
                return None
        key = (row.token, row.beat)
        if self._seen is None:
            self._seen, self._seen_s = key, self._clock()
        elif key != self._seen:
            raise LeaseTakenError(
                f"the database is in use by another FairServe server ({row.holder});"
                " stop it, or choose another one"
            )
        return row

    def _may_take(self, row: HeldLease) -> bool:
        if not row.holder or row.guard == self._guard:
            return True
        unchanged = self._seen == (row.token, row.beat)
        return unchanged and self._clock() - self._seen_s >= row.lease_s

    def _take(self, connection: Connection, row: HeldLease | None) -> None:
        """Raise the token. Raises LeaseTakenError if another server was faster."""
        token = 1 if row is None else row.token + 1
        values = {
            "token": token,
            "beat": 0,
            "holder": self._holder,
            "guard": self._guard,
            "lease_s": self.lease_s,
            "renewed_at": utc_now(),
        }
        if row is None:
            try:
                connection.execute(insert(ServerLease).values(id=1, **values))
            except IntegrityError as error:
                raise LeaseTakenError(FASTER) from error
        else:
            same = (_ROW, ServerLease.token == row.token, ServerLease.beat == row.beat)
            # Waits for transactions that have checked the token but not committed yet.
            lock = select(ServerLease.id).where(*same).with_for_update()
            if connection.execute(lock).first() is None:
                raise LeaseTakenError(FASTER)
            connection.execute(update(ServerLease).where(_ROW).values(**values))
            self.previous_alive_at = row.renewed_at.timestamp()
        self._token = token

    # --- holding it -------------------------------------------------------------------------------

    def start(self) -> None:
        """Renew the lease in a thread of its own."""
        self._thread = threading.Thread(target=self._renew_all, name="lease", daemon=True)
        self._thread.start()

    def call_when_lost(self, listener: Callable[[], object]) -> None:
        """Call ``listener``, from any thread, once another server takes over; at once if it has."""
        self._on_lost = listener
        if self.lost.is_set():
            listener()

    def close(self) -> None:
        """Stop renewing, and let the next server begin at once. May be repeated."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.lost.is_set() or not self._token:
            return
        try:
            with self._engine.begin() as connection:
                connection.execute(self._own_row().values(holder="", renewed_at=utc_now()))
        except SQLAlchemyError:
            logger.warning("the lease of the database is not released: it ends by itself")
        self._token = 0

    def renew(self) -> bool:
        """Renew the lease once; return whether the database answered."""
        began_s = self._clock()
        values = {"beat": ServerLease.beat + 1, "lease_s": self.lease_s, "renewed_at": utc_now()}
        try:
            with self._engine.begin() as connection:
                renewed = connection.execute(self._own_row().values(values)).rowcount > 0
        except SQLAlchemyError as error:
            if not self._failing:
                logger.warning("the lease of the database is not renewed: %s", type(error).__name__)
            self._failing = True
            return False
        if not renewed:
            self._lose()
        else:
            self._until_s = began_s + self.lease_s
            if self._failing:
                logger.warning("the lease of the database is renewed again")
        self._failing = False
        return True

    @property
    def over(self) -> bool:
        """True if another server may hold the database, so that this one accepts nothing new."""
        return self.lost.is_set() or self._clock() >= self._until_s

    def require(self) -> None:
        """Raise UnavailableError if this server must not accept anything new."""
        if self.lost.is_set():
            raise UnavailableError(
                "another server has taken over the database; send the request to that one",
                code="lease_over",
                headers={"Retry-After": "5"},
            )
        if self.over:
            raise UnavailableError(
                f"the database has not answered for {self.lease_s:g} s; nothing new is taken until it"
                " does",
                code="lease_over",
                headers={"Retry-After": "5"},
            )

    def check(self, session: Session) -> None:
        """Raise LeaseLostError if this process may not commit what the session wrote."""
        own = (_ROW, ServerLease.token == self._token)
        # A key-share lock: a takeover waits for this commit, and a renewal does not.
        lock = select(ServerLease.id).where(*own).with_for_update(read=True, key_share=True)
        if session.connection().execute(lock).first() is None:
            self._lose()
            raise LeaseLostError

    # --- parts ------------------------------------------------------------------------------------

    def _renew_all(self) -> None:
        pause_s = self.lease_s / RENEWALS
        while not self._stopping.wait(pause_s) and not self.lost.is_set():
            answered = self.renew()
            pause_s = self.lease_s / (RENEWALS if answered else RETRIES)

    def _lose(self) -> None:
        if not self.lost.is_set():
            logger.error("another server has taken over the database: this one ends")
            self.lost.set()
            self._on_lost()

    def _own_row(self) -> Update:
        return update(ServerLease).where(_ROW, ServerLease.token == self._token)


def fenced(sessions: SessionFactory, lease: ServingRight) -> SessionFactory:
    """Return the sessions, each of which checks the lease right before it commits."""
    event.listen(sessions, "before_commit", lease.check)
    return sessions


def _read(connection: Connection) -> HeldLease | None:
    columns = [getattr(ServerLease, name) for name in HeldLease._fields]
    row = connection.execute(select(*columns).where(_ROW)).one_or_none()
    return None if row is None else HeldLease(*row)
