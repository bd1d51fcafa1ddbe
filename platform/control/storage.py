"""Interfaces of the storage of calls, whether this server or another one keeps their rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sqlalchemy.orm import Session

from fairserve.platform.control.journal.entries import Kind
from fairserve.platform.control.journal.recovery import OpenCall


class RowsJournal(Protocol):
    """Takes the entries of calls and runs; see :class:`~.journal.journal.Journal`."""

    def open(self) -> Sequence[OpenCall]:
        """Begin; return the calls that were left open."""
        ...

    def close(self) -> None:
        """Write what is pending, and stop."""
        ...

    def check(self) -> None:
        """Raise JournalUnavailableError if a new call could not be written."""
        ...

    def append(self, kind: Kind, key: str, data: dict[str, Any]) -> int:
        """Add an entry; return its number."""
        ...

    async def durable(self, sequence: int) -> None:
        """Wait until an ``accepted`` entry is safe."""
        ...

    async def written(self) -> None:
        """Wait until all entries so far outlive this process."""
        ...

    def sizes(self) -> tuple[int, int]:
        """Return the bytes that are kept, and those that are not on disk yet."""
        ...


class RowsLedger(Protocol):
    """Brings the rows to the database; see :class:`~.ledger.Ledger`. From any thread."""

    @property
    def rejected_rows(self) -> int:
        """Number of rows that the database rejects."""
        ...

    @property
    def waits_since_s(self) -> float | None:
        """Monotonic time since which the database accepts no rows; None while it does."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    def lag_bytes(self) -> int:
        """Return the bytes that are not in the database yet."""
        ...

    def waiting_s(self) -> float:
        """Return the seconds for which the database has accepted no rows; 0 while it does."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until all rows so far are in the database; return whether they are."""
        ...

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush and stop; return whether everything was written."""
        ...


class ServingRight(Protocol):
    """The right of this server to accept calls; see :class:`~.lease.Lease`."""

    lost: threading.Event
    previous_alive_at: float | None

    @property
    def over(self) -> bool:
        """True if nothing new is accepted."""
        ...

    def require(self) -> None:
        """Raise UnavailableError if nothing new is accepted."""
        ...

    def check(self, session: Session) -> None:
        """Raise LeaseLostError if this process may not commit what the session wrote."""
        ...

    def call_when_lost(self, listener: Callable[[], object]) -> None:
        """Call ``listener``, from any thread, once this server may not serve any more."""
        ...
