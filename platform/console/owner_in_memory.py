"""Page of a tenant or an app while the database, which has its settings, is away: what is in memory.

It has the share, the calls, the use of the quota, the clients and the live runs. A tenant sees its own.
Whether an app exists is not known then: one without calls is shown without anything.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fastapi import Request
from starlette.responses import Response

from fairserve.platform.console.pages.interactions import InteractionRows
from fairserve.platform.console.quota_meters import Meters, meters_of
from fairserve.platform.console.rendering import page
from fairserve.platform.console.sessions import Viewer
from fairserve.platform.console.state import ConsoleState
from fairserve.platform.monitoring.client_views import ClientPage
from fairserve.platform.monitoring.clients import Clients
from fairserve.platform.monitoring.tenant_calls import CallGroup, TenantCalls

SHOWN = 10
"""Clients and runs that are shown at most."""


class OwnerInMemory(NamedTuple):
    """A tenant or an app, as far as it is in memory."""

    tenant: str | None
    """None for an app whose tenant is not known: it has no calls."""
    app: str | None
    calls: CallGroup
    meters: Meters
    clients: ClientPage
    runs: InteractionRows
    """Live runs."""
    name: str

    @property
    def kind(self) -> str:
        """Return what it is."""
        return "app" if self.app else "tenant"


async def page_in_memory(
    request: Request, viewer: Viewer, *, tenant: str | None = None, app: str | None = None
) -> Response:
    """Return the page of a tenant, or of an app of any tenant that the viewer may see."""
    owner = await _read(request, viewer, viewer.tenant_id or tenant, app)
    return await asyncio.to_thread(
        page, request, viewer, "owner_in_memory", owner=owner, **owner.runs.values()
    )


async def _read(
    request: Request, viewer: Viewer, tenant: str | None, app: str | None
) -> OwnerInMemory:
    state = request.app.state
    console: ConsoleState = state.console
    clients: Clients = state.clients
    tenant_calls: TenantCalls = state.tenant_calls
    found = (await clients.read(tenant)).page(limit=SHOWN, app=app)
    runs = await state.control.runs(tenant, app, SHOWN + 1)
    tenant = tenant or next((each.tenant for each in (*found.items, *runs)), None)
    groups = await tenant_calls.read(tenant if app else None)
    known = viewer.is_admin or bool(found.items or runs)
    scope, owner = ("app", app) if app else ("tenant", tenant)
    names = await asyncio.to_thread(
        console.names.read,
        state.session_factory,
        viewer.principal.sharer,
        tenants=[tenant] if tenant else [],
        apps={each.app for each in (*found.items, *runs)} | ({app} if app and known else set()),
    )
    return OwnerInMemory(
        tenant=tenant,
        app=app,
        calls=groups.get(owner or "", CallGroup()),
        meters=meters_of(state.control.quota_in_use(scope, owner)) if known else {},
        clients=found,
        runs=InteractionRows(
            runs[:SHOWN],
            len(runs) > SHOWN,
            None,
            more_ended=False,
            names=names,
            held=state.control.held_runs(each.interaction_id for each in runs),
        ),
        name=names.get(owner or "", owner or ""),
    )
