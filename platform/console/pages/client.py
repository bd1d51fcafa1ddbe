"""Page of one client: its service and entitled share, and the settings of its user.

While the database is away, the page is without the settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, NamedTuple

import orjson
from fastapi import APIRouter, Depends, Path, Request
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from fairserve.platform.console import forms
from fairserve.platform.console.charts import Chart, chart
from fairserve.platform.console.formats import part
from fairserve.platform.console.forms import contract_of
from fairserve.platform.console.guard import (
    AdminViewer,
    AnyViewer,
    OwnForm,
    acting_for,
    not_there,
    scoped,
)
from fairserve.platform.console.quota_meters import Meters, meters_of
from fairserve.platform.console.rendering import page, render
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.console.streams import KEEP_ALIVE, event, stream
from fairserve.platform.control.service import ControlService
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App
from fairserve.platform.db.schemas import UserId
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.flooding import share_sign
from fairserve.platform.monitoring.schemas import ClientOut
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.quotas.schemas import ContractBody
from fairserve.platform.tenancy.tenants.schemas import UserPut
from fairserve.platform.tenancy.tenants.users import change_user, read_user, reset_user

router = APIRouter(prefix="/console/clients")

POLL_INTERVAL_S = 1.0
POLLS_PER_REFRESH = 5
"""Polls after which the live parts are sent again."""


class ShownClient(NamedTuple):
    """A tenant's app and user that the viewer may see."""

    tenant: str
    app: str
    user: str
    names: Mapping[str, str]


def path_of(client: ShownClient) -> str:
    """Return the path of the client's page."""
    return "/console/clients/" + "/".join(map(part, client[:3]))


def _client(
    tenant_id: str,
    app_id: str,
    user: Annotated[UserId, Path()],
    request: Request,
    viewer: AnyViewer,
) -> ShownClient:
    scoped(viewer, tenant_id, request)
    state, sharer = request.app.state, viewer.principal.sharer
    apps = (app_id,) if viewer.is_admin else ()
    with suppress(OperationalError), state.session_factory() as session:
        app = read_only(session).get(App, app_id)
        if app is None or app.tenant_id != tenant_id:
            raise not_there(request)
        apps = (app_id,)  # of the viewer
    console: ConsoleState = state.console
    names = console.names.read(state.session_factory, sharer, tenants=(tenant_id,), apps=apps)
    return ShownClient(tenant_id, app_id, user, names)


Shown = Annotated[ShownClient, Depends(_client)]


@router.get("/stream/{tenant_id}/{app_id}/{user:path}")
async def follow(client: Shown, request: Request, viewer: AnyViewer) -> Response:
    """Send the live parts every few seconds."""

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            found = await _read(request, viewer, client)
            draw = partial(render, "client_part", viewer=viewer, **_live(client, found))
            yield event("client", await asyncio.to_thread(draw))
            yield event("charts", orjson.dumps(_charts(found)))
            for _ in range(POLLS_PER_REFRESH):
                await asyncio.sleep(POLL_INTERVAL_S)
                yield KEEP_ALIVE

    return stream(request, viewer, pieces)


@router.get("/{tenant_id}/{app_id}/{user:path}")
async def show(client: Shown, request: Request, viewer: AnyViewer) -> Response:
    """Show a client; without recent calls, only its settings."""
    return await _page(request, viewer, client)


@router.post("/{tenant_id}/{app_id}/{user:path}")
async def change(client: Shown, request: Request, viewer: AdminViewer, form: OwnForm) -> Response:
    """Block or unblock the user, set its weight, rpm or quota, or reset it to the defaults."""
    principal = acting_for(viewer)
    wrong = await asyncio.to_thread(_store, request, principal, client, form)
    if wrong:
        return await _page(request, viewer, client, given=form, wrong=wrong)
    return RedirectResponse(f"{path_of(client)}?done=user", status_code=303)


def _store(
    request: Request, principal: Principal, client: ShownClient, form: Mapping[str, str]
) -> forms.Wrong:
    tenant, user = client.tenant, client.user
    action = form.get("action", "")
    if action == "reset":
        return forms.store(
            request, form, lambda session: reset_user(tenant, user, request, session, principal)
        )
    if action not in ("save", "block", "unblock", "contract"):
        return {"": "action must be save, block, unblock, contract or reset"}

    def store(session: Session) -> forms.Wrong:
        body = changed(read_put(session, tenant, user), form)
        if isinstance(body, dict):
            return body
        change_user(tenant, user, body, request, session, principal)
        return {}

    return forms.make(request, form, store)


def read_put(session: Session, tenant: str, user: str) -> UserPut:
    """Return the settings in force for a user, as the body of a request that sets them."""
    held = read_user(tenant, user, session)
    contract = ContractBody.model_validate(held.contract.model_dump())
    return UserPut(
        weight=held.weight,
        priority_weight=held.priority_weight,
        rpm=held.rpm,
        blocked=held.blocked,
        contract=contract,
    )


def changed(held: UserPut, form: Mapping[str, str]) -> UserPut | forms.Wrong:
    """Return the settings after a change; those that the form does not have are unchanged."""
    action = form.get("action", "")
    if action == "block":
        chosen = {name: form[name] for name in ("on_block", "reason") if name in form}
        return forms.read(
            UserPut, {**held.model_dump(mode="json", exclude_unset=True), **chosen, "blocked": True}
        )
    if action == "unblock":
        return held.model_copy(update={"blocked": False})
    if action == "contract":
        contract = contract_of(form, action)
        if not isinstance(contract, ContractBody):
            return contract
        return held.model_copy(update={"contract": contract})
    given: dict[str, Any] = {"weight": form.get("weight", "").strip()}
    given |= {name: forms.given(form[name]) for name in ("priority_weight", "rpm") if name in form}
    body = forms.read(UserPut, given)
    if not isinstance(body, UserPut):
        return body
    return held.model_copy(update={name: getattr(body, name) for name in given})


async def _read(request: Request, viewer: Viewer, client: ShownClient) -> ClientOut | None:
    clients: Clients = request.app.state.clients
    return await clients.one(client.tenant, client.app, client.user, within=viewer.tenant_id)


async def _page(
    request: Request,
    viewer: Viewer,
    client: ShownClient,
    *,
    given: Mapping[str, str] = forms.NOTHING,
    wrong: forms.Wrong = forms.NOTHING,
) -> Response:
    found = await _read(request, viewer, client)
    control: ControlService = request.app.state.control
    meters = meters_of(control.quota_in_use("user", client.tenant, client.user))
    return await asyncio.to_thread(_shown, request, viewer, client, found, meters, given, wrong)


def _shown(
    request: Request,
    viewer: Viewer,
    client: ShownClient,
    found: ClientOut | None,
    meters: Meters,
    given: Mapping[str, str],
    wrong: forms.Wrong,
) -> Response:
    settings = None
    with suppress(OperationalError), request.app.state.session_factory() as session:
        settings = read_user(client.tenant, client.user, read_only(session))
    return page(
        request,
        viewer,
        "client",
        status=400 if wrong else 200,
        settings=settings,
        meters=meters,
        given=given,
        wrong=wrong,
        charts=_charts(found),
        **_live(client, found),
    )


def _live(client: ShownClient, found: ClientOut | None) -> dict[str, Any]:
    return {
        "client": client,
        "own": path_of(client).removeprefix("/console/clients/"),
        "names": client.names,
        "found": found,
        "sign": None if found is None else share_sign(found.client),
    }


def _charts(found: ClientOut | None) -> dict[str, Chart]:
    if found is None:
        return {}
    return {
        "service": chart(found.at, [("service", found.service)]),
        "refused": chart(found.at, [("rejected calls", found.refused)]),
    }
