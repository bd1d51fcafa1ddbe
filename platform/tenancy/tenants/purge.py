"""Purge deleted tenants and apps after their retention.

The purge of an app deletes its keys, limits, profile, programs, responses and report exports; that of
a tenant also its users. Their ledger rows have the same retention.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.db import audit
from fairserve.platform.db.contracts import Contract
from fairserve.platform.db.exports import ReportExport
from fairserve.platform.db.identity import App, Tenant


def purge(session: Session, before: datetime, *, max_rows: int = 20) -> int:
    """Delete apps and tenants that were marked before a time, at most ``max_rows`` of each to bound the
    deleted programs. Return their number; call it again until that is 0. The caller commits.
    """
    gone = select(Tenant.id).where(Tenant.deleted_at < before)
    old_app = or_(App.deleted_at < before, App.tenant_id.in_(gone))
    apps = _locked(session, App.id, App.tenant_id, old_app, max_rows)
    session.execute(delete(Contract).where(Contract.app_id.in_(apps)))
    session.execute(delete(ReportExport).where(ReportExport.app_id.in_(apps)))
    session.execute(delete(App).where(App.id.in_(apps)))
    empty = ~exists().where(App.tenant_id == Tenant.id)
    tenants = _locked(session, Tenant.id, Tenant.id, (Tenant.deleted_at < before) & empty, max_rows)
    session.execute(delete(ReportExport).where(ReportExport.tenant_id.in_(tenants)))
    session.execute(delete(Tenant).where(Tenant.id.in_(tenants)))
    for action, found in (("app.purge", apps), ("tenant.purge", tenants)):
        for target, tenant_id in found.items():
            audit.record(session, None, action, target, tenant_id=tenant_id)
    return len(apps) + len(tenants)


def _locked(
    session: Session,
    key: InstrumentedAttribute[str],
    tenant: InstrumentedAttribute[str],
    condition: Any,
    max_rows: int,
) -> dict[str, str]:
    """Return ids with their tenants; locks the rows, so that they cannot be restored."""
    statement = select(key, tenant).where(condition).order_by(key).limit(max_rows)
    locked = statement.with_for_update(of=key.class_, skip_locked=True)
    return {row[0]: row[1] for row in session.execute(locked)}
