"""Page of the audit log: changes with their authors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer, scoped
from fairserve.platform.console.lists import asked, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.rendering import page
from fairserve.platform.db.names import names_of
from fairserve.platform.db.session import ReadSession
from fairserve.platform.tenancy.audit.schemas import AuditQuery
from fairserve.platform.tenancy.audit.service import changes_page

PAGE = ConsolePage("audit", "Audit", 90, "a")
router = APIRouter(prefix=PAGE.path)


@router.get("")
def show(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """List changes, newest first; for a tenant, those of its objects."""
    given = filters(request)
    forced = {"tenant": scoped(viewer, given.get("tenant"), request)}
    found = changes_page(session, asked(request, AuditQuery, **forced))
    ids = {id for change in found.items for id in (change.target, change.actor_key_id) if id}
    return page(
        request,
        viewer,
        "audit",
        given=given,
        changes=[(change, [*differences(change.before, change.after)]) for change in found.items],
        names=names_of(session, tenants=ids, apps=ids, keys=ids),
        part=part_of(found),
        place=place(request),
    )


def differences(before: Any, after: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the changed values with their names, as ``contract.rpm_limit``: the old and the new one."""
    if before == after:
        return
    parts = [each for each in (before, after) if each is not None]
    if not parts or not all(isinstance(each, dict) and (each or not name) for each in parts):
        yield name, before, after
        return
    former, present = before or {}, after or {}
    for each in dict.fromkeys((*former, *present)):
        inner = f"{name}.{each}" if name else each
        yield from differences(former.get(each), present.get(each), inner)
