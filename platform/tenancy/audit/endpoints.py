"""``GET /admin/audit``: every administrative change, for admin keys. The log is read-only."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from fairserve.platform.db.schemas import Page
from fairserve.platform.db.session import ReadSession
from fairserve.platform.tenancy.audit.schemas import AuditOut, AuditQuery
from fairserve.platform.tenancy.audit.service import changes_page
from fairserve.platform.tenancy.principals import require_admin

router = APIRouter(prefix="/admin/audit")


@router.get("", dependencies=[Depends(require_admin)])
def list_changes(session: ReadSession, query: Annotated[AuditQuery, Query()]) -> Page[AuditOut]:
    """Return the changes, newest first."""
    return changes_page(session, query)
