"""The time of the cell that the database has, beside the one that Redis has.

:mod:`fairserve.platform.server.noted_time` compares them. A server that decides alone deletes it: the
database changes without Redis then.
"""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from fairserve.platform.db.base import utc_now
from fairserve.platform.db.operations import InstallationFact

_FACT = "cell_time_ms"


def cell_time_ms(session: Session) -> int | None:
    """Return the time in UTC epoch milliseconds; None if there is none."""
    fact = session.get(InstallationFact, _FACT)
    return None if fact is None else int(fact.value)


def note_cell_time(session: Session, at_ms: int) -> None:
    """Replace the time."""
    session.merge(InstallationFact(name=_FACT, value=str(at_ms), recorded_at=utc_now()))


def delete_cell_time(session: Session) -> None:
    """Delete the time."""
    session.execute(delete(InstallationFact).where(InstallationFact.name == _FACT))
