"""Pages of apps: create, change, suspend and delete them, with the profile of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.interactions.run_rules import RUN_RULES
from fairserve.platform.console import forms
from fairserve.platform.console.formats import part
from fairserve.platform.console.forms import contract_of
from fairserve.platform.console.guard import (
    AdminViewer,
    AnyViewer,
    OwnForm,
    acting_for,
    not_there,
)
from fairserve.platform.console.lists import ListPart, asked, asked_in, filters, part_of, place
from fairserve.platform.console.navigation import ConsolePage
from fairserve.platform.console.owner_in_memory import page_in_memory
from fairserve.platform.console.profile_form import profile_of, rows_of
from fairserve.platform.console.quota_meters import Meters, meters_of
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App
from fairserve.platform.db.names import names_of
from fairserve.platform.db.schemas import NamedTenantPaging, TenantPaging, TenantQuery
from fairserve.platform.db.session import DatabaseUnavailableError, ReadSession, read_session
from fairserve.platform.serving.in_database import in_database
from fairserve.platform.tenancy.apps.schemas import (
    AppCreate,
    AppPatch,
    LimitsBody,
    ProfileBody,
    StageBody,
    StageOut,
)
from fairserve.platform.tenancy.apps.service import Apps, all_apps_page
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.profiles import repository
from fairserve.platform.tenancy.profiles import service as profiles
from fairserve.platform.tenancy.profiles.dependencies import Options
from fairserve.platform.tenancy.profiles.schemas import AppProfileOut, ProfileModeBody, StageSeen
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import UserQuery
from fairserve.platform.tenancy.tenants.service import Tenants
from fairserve.platform.tenancy.tenants.users import list_users

PAGE = ConsolePage("clients/apps", "Apps", 31, "b", within="tenants")
router = APIRouter(prefix=PAGE.path)

LISTS = ("user_headers", "cors_origins")
"""Lists of the form about requests, one item per line."""
NO_RULES = "none"
"""Line of the form for an app without rules; no line is the rules of the server."""
MODES = (
    ("learned", "learned from its calls"),
    ("declared", "declared by its owner"),
    ("pinned", "pinned: the current profile"),
)
"""Sources of the profile in force, with their titles."""
EXAMPLE = ProfileBody(stages=[StageBody(input_tokens=500, system_tokens=100, output_tokens=200)])
"""The profile in the form of a new app: one chat call."""
VERSIONS = 20
"""Versions of a profile per page."""


class StageRow(NamedTuple):
    """Declared, observed and effective values of a stage."""

    declared: StageOut | None
    seen: StageSeen | None
    in_force: StageOut | None


@router.get("")
def list_all(
    request: Request, viewer: AnyViewer, session: ReadSession, options: Options
) -> Response:
    """List the apps of the viewer or of all tenants, or deleted ones."""
    query = asked_in(request, viewer, NamedTenantPaging)
    found = all_apps_page(session, query, request.app.state.settings.tenancy)
    return page(
        request,
        viewer,
        "apps",
        given=filters(request),
        apps=found.items,
        sources=repository.sources(session, [each.id for each in found.items], options),
        names=names_of(session, tenants={each.tenant_id for each in found.items}),
        part=part_of(found),
        place=place(request),
    )


def _owner(app_id: str, request: Request, viewer: AnyViewer) -> Principal:
    """Return the viewer's principal within the app's tenant. Raises NotFoundError."""
    with request.app.state.session_factory() as session:
        app = read_only(session).get(App, app_id)
    if app is None or viewer.tenant_id not in (None, app.tenant_id):
        raise not_there(request)
    return replace(acting_for(viewer), tenant_id=app.tenant_id)


Owner = Annotated[Principal, Depends(_owner)]


def _tenant(request: Request, viewer: AdminViewer) -> Principal:
    """Return the operator's principal within the tenant that the URL names."""
    return replace(acting_for(viewer), tenant_id=asked(request, TenantQuery).tenant or "")


ForTenant = Annotated[Principal, Depends(_tenant)]


@router.get("/new")
def show_new(request: Request, viewer: AdminViewer, owner: ForTenant) -> Response:
    """Show the form of a new app of a tenant."""
    return _new(request, viewer, owner)


@router.post("/new")
def create(
    request: Request, viewer: AdminViewer, owner: ForTenant, options: Options, form: OwnForm
) -> Response:
    """Create an app, and show it with its key, once."""
    body, mode = new_app(form), forms.read(ProfileModeBody, forms.fields_of(form, ProfileModeBody))
    if isinstance(body, dict) or isinstance(mode, dict):
        wrong = {
            **(body if isinstance(body, dict) else {}),
            **(mode if isinstance(mode, dict) else {}),
        }
        return _new(request, viewer, owner, given=form, wrong=wrong)

    def store(session: Session) -> tuple[str, str]:
        app, key = Apps(request.app.state.tenancy, session, owner).create(body)
        if mode.mode != app.profile_mode:
            control = request.app.state.control
            profiles.set_mode(session, control, acting_for(viewer), app, mode, options)
        return app.id, key.plain

    made = forms.make(request, form, store)
    if isinstance(made, dict):
        return _new(request, viewer, owner, given=form, wrong=made)
    app_id, key = made
    return _page(app_id, request, viewer, owner, options, {}, key=key)


def new_app(form: Mapping[str, str]) -> AppCreate | forms.Wrong:
    """Return the body of a form of a new app, or the errors of all its fields."""
    profile = profile_of(form)
    limits = forms.fields_of(form, LimitsBody)
    given = {"name": form.get("name", ""), "limits": limits}
    if isinstance(profile, dict):
        rest = forms.read(AppCreate, {**given, "profile": EXAMPLE})
        return {**profile, **rest} if isinstance(rest, dict) else profile
    return forms.read(AppCreate, {**given, "profile": profile})


def _new(
    request: Request,
    viewer: Viewer,
    owner: Principal,
    *,
    given: Mapping[str, str] = forms.NOTHING,
    wrong: forms.Wrong = forms.NOTHING,
) -> Response:
    with contextmanager(read_session)(request) as session:
        tenants = Tenants(request.app.state.tenancy, session, acting_for(viewer))
        tenant = tenants.describe(tenants.get(owner.tenant_id or ""))
    return page(
        request,
        viewer,
        "app_new",
        status=400 if wrong else 200,
        tenant=tenant,
        rows=rows_of(EXAMPLE.stages, given),
        modes=MODES,
        given=given,
        wrong=wrong,
    )


async def _meters(request: Request) -> Meters:
    """Return the use of the quota of the path's app. On the event loop, where control changes it."""
    app_id = request.path_params["app_id"]
    return meters_of(request.app.state.control.quota_in_use("app", app_id))


QuotaMeters = Annotated[Meters, Depends(_meters)]


@router.get("/{app_id}")
async def show(
    app_id: str, request: Request, viewer: AnyViewer, options: Options, meters: QuotaMeters
) -> Response:
    """Show one app, deleted or not; while the database is away, what is in memory of it."""

    def read() -> Response:
        owner = _owner(app_id, request, viewer)
        return _page(app_id, request, viewer, owner, options, meters)

    try:
        return await in_database(read)
    except DatabaseUnavailableError:
        return await page_in_memory(request, viewer, app=app_id)


@router.get("/{app_id}/users")
def list_settings(
    app_id: str, request: Request, viewer: AdminViewer, owner: Owner, session: ReadSession
) -> Response:
    """List the users of an app's tenant that have settings, by the beginning of their id."""
    found = list_users(session, asked(request, UserQuery, tenant=owner.tenant_id))
    return page(
        request,
        viewer,
        "app_users",
        app=profiles.app_of(session, owner.tenant_id, app_id),
        users=found.items,
        filters=filters(request),
        part=part_of(found),
        place=place(request),
    )


@router.post("/{app_id}")
def change(
    app_id: str,
    request: Request,
    viewer: AnyViewer,
    owner: Owner,
    options: Options,
    form: OwnForm,
    meters: QuotaMeters,
) -> Response:
    """Change an app's settings, requests, profile or quotas; suspend, resume, delete or restore it."""
    action = form.get("action", "")

    def store(session: Session) -> forms.Wrong:
        apps = Apps(request.app.state.tenancy, session, owner)
        if action == "delete":
            apps.delete(app_id)
        elif action == "restore":
            apps.restore(app_id)
        else:
            body = patch_of(form, weigh=viewer.is_admin)
            if isinstance(body, dict):
                return body
            apps.change(app_id, body)
        return {}

    wrong = forms.make(request, form, store)
    if wrong:
        return _page(app_id, request, viewer, owner, options, meters, given=form, wrong=wrong)
    return _done(app_id, action if action in ("delete", "restore") else "app")


@router.post("/{app_id}/profile")
def change_profile(
    app_id: str,
    request: Request,
    viewer: AdminViewer,
    owner: Owner,
    options: Options,
    form: OwnForm,
    meters: QuotaMeters,
) -> Response:
    """Use the learned or the declared profile, or pin the current one."""

    def store(session: Session, body: ProfileModeBody) -> None:
        control = request.app.state.control
        profiles.change_mode(session, control, acting_for(viewer), app_id, body, options)

    read = forms.read(ProfileModeBody, {"mode": form.get("mode", "")})
    wrong = forms.store_valid(request, form, read, store)
    if wrong:
        return _page(app_id, request, viewer, owner, options, meters, given=form, wrong=wrong)
    return _done(app_id, "profile")


def patch_of(form: Mapping[str, str], *, weigh: bool) -> AppPatch | forms.Wrong:
    """Return the changes of a form, with ``weigh`` including the weights."""
    action = form.get("action", "")
    if action in ("suspend", "resume"):
        return AppPatch(suspended=action == "suspend")
    if action in forms.CONTRACTS:
        contract = contract_of(form, action)
        return AppPatch(**{action: contract}) if isinstance(contract, ContractBody) else contract
    if action == "profile":
        profile = profile_of(form)
        return AppPatch(profile=profile) if isinstance(profile, ProfileBody) else profile
    if action == "requests":
        lists: dict[str, Any] = {name: forms.lines(form.get(name)) for name in LISTS}
        rules = forms.lines(form.get("run_rules"))
        lists["run_rules"] = [] if rules == [NO_RULES] else rules or None
        return forms.read(AppPatch, lists)
    names = LimitsBody.model_fields
    given: dict[str, Any] = {
        "name": form.get("name", ""),
        "limits": {name: forms.given(form.get(name)) for name in names},
    }
    if weigh:
        given["weight"] = form.get("weight", "").strip()
        if (
            "priority_weight" in form
        ):  # a page that was opened before it had the field takes no grant
            given["priority_weight"] = forms.given(form["priority_weight"])
    return forms.read(AppPatch, given)


def stage_rows(profile: AppProfileOut) -> list[StageRow]:
    """Return one row per stage, up to the last stage of the three profiles."""
    declared, seen = profile.declared.stages, profile.seen.stages
    held = profile.in_force.profile.stages
    return [StageRow(*each) for each in zip_longest(declared, seen, held)]


def _done(app_id: str, note: str) -> Response:
    return RedirectResponse(f"/console/clients/apps/{part(app_id)}?done={note}", status_code=303)


def _page(
    app_id: str,
    request: Request,
    viewer: Viewer,
    owner: Principal,
    options: LearningOptions | None,
    meters: Meters,
    *,
    key: str | None = None,
    given: Mapping[str, str] = forms.NOTHING,
    wrong: forms.Wrong = forms.NOTHING,
) -> Response:
    offset = asked(request, TenantPaging).offset
    with contextmanager(read_session)(request) as session:
        apps = Apps(request.app.state.tenancy, session, owner)
        app = apps.describe(apps.get(app_id))
        row = profiles.app_of(session, owner.tenant_id, app_id)
        profile = profiles.describe(session, row, options)
        query = TenantPaging(limit=VERSIONS, offset=offset)
        versions = profiles.history_page(session, row, query)
        names = names_of(session, tenants=(app.tenant_id,))
    end = offset + len(versions.items)
    return page(
        request,
        viewer,
        "app",
        status=400 if wrong else 200,
        app=app,
        names=names,
        profile=profile,
        rules=RUN_RULES,
        no_rules=NO_RULES,
        stages=stage_rows(profile),
        rows=rows_of(profile.declared.stages, given),
        modes=MODES,
        meters=meters,
        kept=request.app.state.settings.tenancy.ledger_retention_days,
        key=key,
        versions=versions.items,
        part=ListPart(offset, VERSIONS, len(versions.items), versions.total, end < versions.total),
        place=place(request),
        given=given,
        wrong=wrong,
    )
