"""Read the audit log."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import Page, view_of
from fairserve.platform.tenancy.audit.schemas import AuditOut, AuditQuery


def changes_page(session: Session, query: AuditQuery) -> Page[AuditOut]:
    """Return a page of the changes, newest first."""
    newest = select(AuditEntry).order_by(AuditEntry.at.desc(), AuditEntry.id.desc())
    rows, total = read_page(session, newest.where(*_conditions(query)), query)
    return Page.of([view_of(AuditOut, row) for row in rows], total, query)


def _conditions(query: AuditQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.tenant is not None:
        found.append(AuditEntry.tenant_id == query.tenant)
    if query.action is not None:
        found.append(AuditEntry.action == query.action)
    if query.target is not None:
        found.append(AuditEntry.target == query.target)
    if query.actor is not None:
        # A person's name follows its id in parentheses.
        before_name = func.substr(AuditEntry.actor, 1, len(query.actor) + 2)
        found.append(
            or_(
                AuditEntry.actor == query.actor,
                AuditEntry.actor_key_id == query.actor,
                before_name == f"{query.actor} (",
            )
        )
    if query.since is not None:
        found.append(AuditEntry.at >= query.since)
    return found
