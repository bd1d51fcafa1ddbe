"""Delete the exports that may name an erased end user.

Files are not searched: every file of the user's tenant, or of all tenants, that may name users is
deleted, unless it covers another user only. A running export restarts, because it may have read the
user's rows before the erasure.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, delete, or_, select, update

from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.rows import changed
from fairserve.platform.reporting.exports import repository


def forget_user(sessions: SessionFactory, tenant_id: str, user: str) -> int:
    """Delete the exports that may name a user of a tenant, and return their number.

    Call it once no other table names the user. A repetition finishes an interrupted deletion.
    """
    theirs = or_(ReportExport.tenant_id == tenant_id, ReportExport.tenant_id.is_(None))
    about = ReportExport.user_id.is_not_distinct_from(user)  # usually null
    may_name: list[ColumnElement[bool]] = [
        theirs,
        ReportExport.names_users.expression,
        or_(ReportExport.user_id.is_(None), about),
    ]
    with sessions.begin() as session:
        # Before the search for ready exports, so that none becomes ready in between.
        running = update(ReportExport).where(*may_name, ReportExport.state == "running")
        queued = {"state": "queued", "lease_until": None, "progress": None, "size_bytes": 0}
        changed(session, running.values(queued))
        has_file = ReportExport.state.in_(("ready", "expired"))
        going = or_(has_file, about)
        ids = session.scalars(select(ReportExport.id).where(*may_name, going)).all()
        staying = session.execute(
            select(ReportExport.id, ReportExport.attempt).where(*may_name, ~going)
        ).all()
    for export_id, attempt in staying:
        repository.drop_parts(sessions, export_id, attempt + 1)
    deleted = 0
    for export_id in ids:
        with sessions.begin() as session:
            deleted += changed(session, delete(ReportExport).where(ReportExport.id == export_id))
    return deleted
