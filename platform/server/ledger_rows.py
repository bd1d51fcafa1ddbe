"""Writes what the ledger reads from the journal: rows for reports, and events for webhooks."""

from __future__ import annotations

from fairserve.platform.background.webhooks.outbox import Outbox
from fairserve.platform.control.messages import Rows
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.key_hash import KeyHasher
from fairserve.platform.reporting.usage.repository import (
    save_open_interactions,
    upsert_calls,
    upsert_interactions,
)
from fairserve.platform.reporting.user_data.pseudonyms import under_pseudonyms


class LedgerRows:
    """The ledger's writer. One transaction for each batch of rows; a batch may be written again."""

    def __init__(self, sessions: SessionFactory, hasher: KeyHasher, outbox: Outbox) -> None:
        self._sessions = sessions
        self._hasher = hasher
        self._outbox = outbox

    def write(self, rows: Rows) -> None:
        """Write a batch. Erased users appear under their pseudonyms. Raises SQLAlchemyError."""
        with self._sessions.begin() as session:
            written = under_pseudonyms(session, self._hasher, rows)
            upsert_calls(session, written.calls)
            upsert_interactions(session, written.ended)
            save_open_interactions(session, written.ended, written.opened)
            self._outbox.record(
                session,
                list(zip(rows.calls, written.calls, strict=True)),
                list(zip(rows.ended, written.ended, strict=True)),
            )
