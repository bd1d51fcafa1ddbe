"""Pages of tenants, for operators: create, change, suspend and delete them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.interactions.call import TENANT_LEVELS
from fairserve.platform.console import forms
from fairserve.platform.console.formats import part
from fairserve.platform.console.forms import NOTHING, contract_of
from fairserve.platform.console.guard import AdminViewer, OwnForm, acting_for
from fairserve.platform.console.lists import asked, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.owner_in_memory import page_in_memory
from fairserve.platform.console.quota_meters import Meters, meters_of
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.schemas import NamedPaging, NamedTenantPaging
from fairserve.platform.db.session import DatabaseUnavailableError, read_session
from fairserve.platform.serving.in_database import in_database
from fairserve.platform.tenancy.apps.service import all_apps_page
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import TenantCreate, TenantPatch
from fairserve.platform.tenancy.tenants.service import Tenants

PAGE = ConsolePage("clients/tenants", "Tenants", 30, "t", only_admin=True, within="tenants")
router = APIRouter(prefix=PAGE.path)

NEW = "tenant."
"""Beginning of the fields' names in the form of a new tenant."""
LEVELS = (("", "levels of the system"), *((each, each) for each in TENANT_LEVELS))
MOST_APPS = 20
"""Number of apps listed on a tenant's page."""


async def _meters(request: Request) -> Meters:
    """Return the use of the quota of the path's tenant. On the event loop, where control changes it."""
    tenant_id = request.path_params["tenant_id"]
    return meters_of(request.app.state.control.quota_in_use("tenant", tenant_id))


QuotaMeters = Annotated[Meters, Depends(_meters)]


@router.get("")
def list_all(request: Request, viewer: AdminViewer) -> Response:
    """List all tenants, or deleted ones."""
    return _list(request, viewer)


@router.post("")
def create(request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Create a tenant, and show it with its key, once."""
    fields = forms.fields_of(form, TenantCreate, NEW)
    body = forms.read(TenantCreate, {**fields, "name": fields.get("name") or ""}, NEW)
    if isinstance(body, dict):
        return _list(request, viewer, form=form, wrong=body)

    def store(session: Session) -> tuple[str, str]:
        tenant, key = Tenants(request.app.state.tenancy, session, acting_for(viewer)).create(body)
        return tenant.id, key.plain

    made = forms.make(request, form, store, NEW)
    if isinstance(made, dict):
        return _list(request, viewer, form=form, wrong=made)
    tenant_id, key = made
    return _page(tenant_id, request, viewer, {}, key=key)


@router.get("/{tenant_id}")
async def show(
    tenant_id: str, request: Request, viewer: AdminViewer, meters: QuotaMeters
) -> Response:
    """Show one tenant, deleted or not, and its first apps; without the database what is in memory."""
    try:
        return await in_database(_page, tenant_id, request, viewer, meters)
    except DatabaseUnavailableError:
        return await page_in_memory(request, viewer, tenant=tenant_id)


@router.post("/{tenant_id}")
def change(
    tenant_id: str, request: Request, viewer: AdminViewer, form: OwnForm, meters: QuotaMeters
) -> Response:
    """Set a tenant's name, weight, levels or quota; suspend, resume, delete or restore it."""
    action = form.get("action", "")

    def store(session: Session) -> forms.Wrong:
        tenants = Tenants(request.app.state.tenancy, session, acting_for(viewer))
        if action == "delete":
            tenants.delete(tenant_id)
        elif action == "restore":
            tenants.restore(tenant_id)
        else:
            body = patch_of(form)
            if isinstance(body, dict):
                return body
            tenants.change(tenant_id, body)
        return {}

    wrong = forms.make(request, form, store)
    if wrong:
        return _page(tenant_id, request, viewer, meters, given=form, wrong=wrong)
    done = action if action in ("delete", "restore") else "tenant"
    return RedirectResponse(f"/console/clients/tenants/{part(tenant_id)}?done={done}", 303)


def patch_of(form: Mapping[str, str]) -> TenantPatch | forms.Wrong:
    """Return the changes of a form."""
    action = form.get("action", "")
    if action in ("suspend", "resume"):
        return TenantPatch(suspended=action == "suspend")
    if action == "contract":
        contract = contract_of(form, action)
        return TenantPatch(contract=contract) if isinstance(contract, ContractBody) else contract
    values: dict[str, str | None] = {"weight": form.get("weight", "").strip()}
    if "name" in form:
        values["name"] = form["name"]
    if "levels" in form:
        values["levels"] = forms.given(form["levels"])
    return forms.read(TenantPatch, values)


def _list(
    request: Request,
    viewer: Viewer,
    *,
    form: Mapping[str, str] = NOTHING,
    wrong: forms.Wrong = NOTHING,
) -> Response:
    query = asked(request, NamedPaging)
    with contextmanager(read_session)(request) as session:
        found = Tenants(request.app.state.tenancy, session, acting_for(viewer)).page(query)
    return page(
        request,
        viewer,
        "tenants",
        status=400 if wrong else 200,
        filters=filters(request),
        tenants=found.items,
        levels=LEVELS,
        part=part_of(found),
        place=place(request),
        given=form,
        wrong=wrong,
    )


def _page(
    tenant_id: str,
    request: Request,
    viewer: Viewer,
    meters: Meters,
    *,
    key: str | None = None,
    given: Mapping[str, str] = NOTHING,
    wrong: forms.Wrong = NOTHING,
) -> Response:
    settings = request.app.state.settings.tenancy
    with contextmanager(read_session)(request) as session:
        tenants = Tenants(request.app.state.tenancy, session, acting_for(viewer))
        tenant = tenants.describe(tenants.get(tenant_id))
        apps = all_apps_page(
            session, NamedTenantPaging(tenant=tenant.id, limit=MOST_APPS), settings
        )
    return page(
        request,
        viewer,
        "tenant",
        status=400 if wrong else 200,
        tenant=tenant,
        apps=apps,
        levels=LEVELS,
        meters=meters,
        kept=settings.ledger_retention_days,
        key=key,
        given=given,
        wrong=wrong,
    )
