"""Writes what the ledger reads from the journal: rows for reports, and events for webhooks.

Where a write fails, a plain row of each kind is written and rolled back: if the database accepts these,
the rows caused the error.
"""

from __future__ import annotations

import logging

from sqlalchemy.orm import Session

from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.control.ledger_tables import (
    save_open_interactions,
    upsert_calls,
    upsert_interactions,
)
from fairserve.platform.control.messages import (
    CallRecord,
    InteractionRecord,
    OpenInteractionRecord,
    Rows,
)
from fairserve.platform.db.causes import may_be_values
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.reporting.user_data.pseudonyms import under_pseudonyms

logger = logging.getLogger(__name__)

_TIME_S = 1.0
PLAIN = Rows(
    (CallRecord("", "", "", "", "", "", 0, None, "refused", _TIME_S, _TIME_S),),
    (InteractionRecord("", "", "", "", "complete", _TIME_S, _TIME_S, 0, 0, 0),),
    (OpenInteractionRecord("", "", "", "", _TIME_S),),
)
"""A row of each kind that any database of this schema accepts; it is never committed."""


class LedgerRows:
    """The ledger's writer. One transaction for each batch of rows; a batch may be written again."""

    def __init__(self, sessions: SessionFactory, hasher: KeyHasher, outbox: Outbox) -> None:
        self._sessions = sessions
        self._hasher = hasher
        self._outbox = outbox

    def write(self, rows: Rows) -> None:
        """Write a batch. Erased users appear under their pseudonyms. Raises SQLAlchemyError."""
        with self._sessions.begin() as session:
            self._write(session, rows)

    def blames_rows(self, error: Exception) -> bool:
        """Return whether the rows caused an error of :meth:`write`, and not the database."""
        if not may_be_values(error):
            return False
        try:
            with self._sessions() as session:
                self._write(session, PLAIN)
                session.rollback()
        except Exception:
            logger.debug("the database does not accept a plain row either", exc_info=True)
            return False
        return True

    def _write(self, session: Session, rows: Rows) -> None:
        written = under_pseudonyms(session, self._hasher, rows)
        upsert_calls(session, written.calls)
        upsert_interactions(session, written.ended)
        save_open_interactions(session, written.ended, written.opened)
        self._outbox.record(
            session,
            list(zip(rows.calls, written.calls, strict=True)),
            list(zip(rows.ended, written.ended, strict=True)),
        )
