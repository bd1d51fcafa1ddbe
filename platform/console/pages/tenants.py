"""Pages of tenants, for operators: weight, levels, quota and suspension."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.interactions.call import TENANT_LEVELS
from fairserve.platform.console import forms
from fairserve.platform.console.formats import part
from fairserve.platform.console.forms import contract_of
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for
from fairserve.platform.console.lists import asked, filters, part_of, place
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.schemas import NamedPaging, NamedTenantPaging
from fairserve.platform.db.session import ReadSession, read_session
from fairserve.platform.tenancy.apps.service import all_apps_page
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import TenantPatch
from fairserve.platform.tenancy.tenants.service import Tenants

router = APIRouter(prefix="/console/clients/tenants")

MOST_APPS = 20
"""Number of apps listed on a tenant's page."""


@router.get("")
def list_all(request: Request, viewer: AdminViewer, session: ReadSession) -> Response:
    """List all tenants, or deleted ones."""
    query = asked(request, NamedPaging)
    found = Tenants(request.app.state.tenancy, session, acting_for(viewer)).page(query)
    return page(
        request,
        viewer,
        "tenants",
        given=filters(request),
        tenants=found.items,
        part=part_of(found),
        place=place(request),
    )


@router.get("/{tenant_id}")
def show(tenant_id: str, request: Request, viewer: AdminViewer) -> Response:
    """Show one tenant, deleted or not, and its first apps."""
    return _page(tenant_id, request, viewer)


@router.post("/{tenant_id}")
def change(tenant_id: str, request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Set a tenant's weight, levels or quota; suspend or resume it."""

    def store(session: Session, body: TenantPatch) -> None:
        Tenants(request.app.state.tenancy, session, acting_for(viewer)).change(tenant_id, body)

    wrong = forms.store_valid(request, patch_of(form), store)
    if wrong:
        return _page(tenant_id, request, viewer, given=form, wrong=wrong)
    return RedirectResponse(f"/console/clients/tenants/{part(tenant_id)}?done=tenant", 303)


def patch_of(form: Mapping[str, str]) -> TenantPatch | forms.Wrong:
    """Return the changes of a form."""
    action = form.get("action", "")
    if action in ("suspend", "resume"):
        return TenantPatch(suspended=action == "suspend")
    if action == "contract":
        contract = contract_of(form, action)
        return TenantPatch(contract=contract) if isinstance(contract, ContractBody) else contract
    values: dict[str, str | None] = {"weight": form.get("weight", "").strip()}
    if "levels" in form:
        values["levels"] = forms.given(form["levels"])
    return forms.read(TenantPatch, values)


def _page(
    tenant_id: str,
    request: Request,
    viewer: Viewer,
    *,
    given: Mapping[str, str] | None = None,
    wrong: forms.Wrong | None = None,
) -> Response:
    with contextmanager(read_session)(request) as session:
        tenants = Tenants(request.app.state.tenancy, session, acting_for(viewer))
        tenant = tenants.describe(tenants.get(tenant_id))
        apps = all_apps_page(
            session,
            NamedTenantPaging(tenant=tenant.id, limit=MOST_APPS),
            request.app.state.settings.tenancy,
        )
    return page(
        request,
        viewer,
        "tenant",
        status=400 if wrong else 200,
        tenant=tenant,
        apps=apps,
        levels=TENANT_LEVELS,
        given=given or {},
        wrong=wrong or {},
    )
