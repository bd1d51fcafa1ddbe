"""Delete rows that are older than their retention, in short transactions."""

from __future__ import annotations

from datetime import timedelta

from fairserve.platform.background.alarms.store import delete_old as delete_alarms
from fairserve.platform.background.settings import JobSettings
from fairserve.platform.background.webhooks.outbox import KEPT
from fairserve.platform.background.webhooks.retention import delete_old as delete_webhooks_before
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.reporting.usage.retention import (
    delete_before,
    delete_rollups_before,
    raw_rows_from,
)
from fairserve.platform.serving.batches.repository import delete_before as delete_batches_before
from fairserve.platform.serving.batches.repository import delete_leftovers
from fairserve.platform.serving.files.service import delete_old as delete_old_files
from fairserve.platform.serving.files.store import open_store
from fairserve.platform.serving.programs.repository import delete_before as delete_programs_before
from fairserve.platform.serving.responses.conversations import (
    delete_before as delete_conversations_before,
)
from fairserve.platform.serving.responses.repository import (
    delete_before as delete_responses_before,
)
from fairserve.platform.tenancy.keys.sessions import delete_expired as delete_expired_sessions
from fairserve.platform.tenancy.tenants.purge import purge


def delete_old(sessions: SessionFactory, settings: JobSettings) -> int:
    """Delete a batch of rows that are older than their retention; return their number.

    Files are deleted once no rows are left, so that a store that fails keeps no rows.
    """
    now = utc_now()
    ledger_before = now - timedelta(days=settings.tenancy.ledger_retention_days)
    with sessions.begin() as session:
        raw_from = raw_rows_from(session, ledger_before)
    with sessions.begin() as session:
        rows = delete_before(session, raw_from)
    with sessions.begin() as session:
        rows += purge(session, ledger_before)
    with sessions.begin() as session:
        rows += delete_rollups_before(
            session, now - timedelta(days=settings.reporting.usage_retention_days)
        )
    with sessions.begin() as session:
        rows += delete_webhooks_before(session, now - KEPT)
    with sessions.begin() as session:
        rows += delete_alarms(session, now)
    with sessions.begin() as session:
        rows += delete_expired_sessions(session, now)
    contents_before = now - timedelta(days=settings.serving.content_retention_days)
    for delete in (
        delete_programs_before,
        delete_responses_before,
        delete_conversations_before,
        delete_batches_before,
    ):
        with sessions.begin() as session:
            rows += delete(session, contents_before)
    rows += delete_leftovers(sessions)
    if rows:
        return rows
    store = open_store(settings.serving.file_store_url, sessions)
    return delete_old_files(sessions, store, now)
