"""``GET /admin/audit``: every administrative change, for admin keys. Nothing here changes the log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy import ColumnElement, func, or_, select

from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.schemas import Page
from fairserve.platform.db.session import ReadSession
from fairserve.platform.tenancy.audit.schemas import AuditOut, AuditQuery
from fairserve.platform.tenancy.auth import require_admin

router = APIRouter(prefix="/admin/audit")


@router.get("", dependencies=[Depends(require_admin)])
def list_changes(session: ReadSession, query: Annotated[AuditQuery, Query()]) -> Page[AuditOut]:
    """Changes, newest first."""
    conditions = _conditions(query)
    rows = session.scalars(
        select(AuditEntry)
        .where(*conditions)
        .order_by(AuditEntry.at.desc(), AuditEntry.id.desc())
        .limit(query.limit)
        .offset(query.offset)
    )
    items = [
        AuditOut(
            id=row.id,
            at=row.at,
            actor=row.actor,
            actor_key_id=row.actor_key_id,
            tenant=row.tenant_id,
            action=row.action,
            target=row.target,
            before=row.before,
            after=row.after,
        )
        for row in rows
    ]
    total = session.scalar(select(func.count(AuditEntry.id)).where(*conditions)) or 0
    return Page(items=items, total=total, limit=query.limit, offset=query.offset)


def _conditions(query: AuditQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.tenant is not None:
        found.append(AuditEntry.tenant_id == query.tenant)
    if query.action is not None:
        found.append(AuditEntry.action == query.action)
    if query.target is not None:
        found.append(AuditEntry.target == query.target)
    if query.actor is not None:
        found.append(or_(AuditEntry.actor == query.actor, AuditEntry.actor_key_id == query.actor))
    if query.since is not None:
        found.append(AuditEntry.at >= query.since)
    return found
