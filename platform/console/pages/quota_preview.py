"""The sentence beside a limit that is being entered: what it would have rejected in the last hour."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from fairserve.platform.console.guard import AnyViewer, not_there, scoped
from fairserve.platform.console.lists import filters
from fairserve.platform.console.rendering import page
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.session import ReadSession
from fairserve.platform.tuning.quota_preview import QuotaPreviewQuery, quota_preview

router = APIRouter(prefix="/console/quota-preview")


@router.get("")
def show(request: Request, viewer: AnyViewer, session: ReadSession) -> Response:
    """Return the sentence below a field; nothing while its text is no valid limit."""
    given = {name.rpartition(".")[2]: text for name, text in filters(request).items()}
    tenant = scoped(viewer, given.get("tenant"), request)
    if tenant is None:
        raise not_there(request)
    try:
        query = QuotaPreviewQuery.model_validate({**given, "tenant": tenant})
    except ValidationError:
        return page(request, viewer, "quota_preview", preview=None)
    enforcement = request.app.state.settings.tenancy.quota_enforcement
    preview = quota_preview(session, tenant, query, enforcement, utc_now())
    return page(request, viewer, "quota_preview", preview=preview)
