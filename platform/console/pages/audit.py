"""Page of the audit log: changes with their authors."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer, scoped
from fairserve.platform.console.lists import asked, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.db.session import ReadSession
from fairserve.platform.tenancy.audit.schemas import AuditOut, AuditQuery
from fairserve.platform.tenancy.audit.service import changes_page

PAGE = ConsolePage("audit", "Audit", 9)
router = APIRouter(prefix=PAGE.path)


@router.get("")
def show(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """List changes, newest first; for a tenant, those of its objects."""
    given = filters(request)
    forced = {"tenant": scoped(viewer, given.get("tenant"), request)}
    found = changes_page(session, asked(request, AuditQuery, **forced))
    return page(
        request,
        viewer,
        "audit",
        given=given,
        changes=[(change, differences(change)) for change in found.items],
        part=part_of(found),
        place=place(request),
    )


def differences(change: AuditOut) -> list[tuple[str, Any, Any]]:
    """Return the changed fields, each with its old and new value."""
    before, after = change.before or {}, change.after or {}
    names = [*before, *(name for name in after if name not in before)]
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return [(name, old, new) for name, old, new in pairs if old != new]
