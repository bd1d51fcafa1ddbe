"""Page of the audit log: changes with their authors; changed limits can be restored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from fairserve.platform.console.guard import (
    AdminViewer,
    AnyViewer,
    OwnForm,
    acting_for,
    not_there,
    scoped,
)
from fairserve.platform.console.limit_changes import (
    LimitChange,
    effect_of,
    restorable,
    verb_of,
)
from fairserve.platform.console.lists import asked, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.pages.overview import page_of
from fairserve.platform.console.rendering import page
from fairserve.platform.console.restoring import restore
from fairserve.platform.db.names import names_of
from fairserve.platform.db.operations import AuditEntry
from fairserve.platform.db.session import ReadSession, WriteSession
from fairserve.platform.tenancy.audit.schemas import AuditOut, AuditQuery
from fairserve.platform.tenancy.audit.service import changes_page

PAGE = ConsolePage("audit", "Audit", 90, "a")
router = APIRouter(prefix=PAGE.path)

PER_PAGE = 35


@router.get("")
def show(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """List changes, newest first; for a tenant, those of its objects."""
    given = filters(request)
    forced = {"tenant": scoped(viewer, given.get("tenant"), request)}
    found = changes_page(session, asked(request, AuditQuery, PER_PAGE, **forced))
    ids = {
        id
        for change in found.items
        for id in (change.target, change.actor_key_id, change.tenant)
        if id
    }
    return page(
        request,
        viewer,
        "audit",
        given=given,
        changes=[_shown(change) for change in found.items],
        verb_of=verb_of,
        effect_of=effect_of,
        names=names_of(session, tenants=ids, apps=ids, keys=ids),
        part=part_of(found),
        place=place(request),
    )


@router.post("/{entry_id}/restore")
def restore_limits(
    entry_id: str, request: Request, viewer: AdminViewer, form: OwnForm, session: WriteSession
) -> Response:
    """Restore the limits that a change set, from here or from the page Now, which is shown again."""
    entry = session.get(AuditEntry, entry_id)
    limits = [] if entry is None else restorable(entry.action, _differences(entry))
    if entry is None or not limits:
        raise not_there(request)
    restore(request, session, acting_for(viewer), entry, limits)
    return RedirectResponse(f"{page_of(form, PAGE).path}?done=limits", status_code=303)


def _differences(change: AuditOut | AuditEntry) -> list[tuple[str, Any, Any]]:
    return list(differences(change.before, change.after))


def _shown(
    change: AuditOut,
) -> tuple[AuditOut, Sequence[tuple[str, Any, Any]], Sequence[LimitChange]]:
    """Return a change with its differences, and those of them that can be restored."""
    fields = _differences(change)
    return change, fields, restorable(change.action, fields)


def differences(before: Any, after: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the changed values with their names, as ``contract.rpm_limit``: the old and the new one."""
    if before == after:
        return
    parts = [each for each in (before, after) if each is not None]
    empty = name and not any(parts)
    if empty or not all(isinstance(each, dict) for each in parts):
        yield name, before, after
        return
    former, present = before or {}, after or {}
    for each in dict.fromkeys((*former, *present)):
        inner = f"{name}.{each}" if name else each
        yield from differences(former.get(each), present.get(each), inner)
