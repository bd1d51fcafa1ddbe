"""Access of keys to usage, rejections and runs.

An app key reads its own app, a tenant key all apps of the tenant, an admin key those of the tenant
that it names.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import Depends, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import NotFoundError
from fairserve.platform.db.identity import App
from fairserve.platform.db.usage import UsageCalls
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.principals import CurrentPrincipal, require_tenant


class NamesApp(Protocol):
    """A query that may name an app."""

    @property
    def app(self) -> str | None:
        """Id of the app; None if the query does not name one."""
        ...


async def _reader(principal: CurrentPrincipal, request: Request) -> Principal:
    """Return the principal of an app key, a tenant key, or an admin key that names a tenant."""
    if principal.scope != "app":
        return await require_tenant(principal, request)
    if request.query_params.get("tenant", principal.tenant_id) != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal


Reader = Annotated[Principal, Depends(_reader)]


def asked_app(session: Session, principal: Principal, query: NamesApp) -> str | None:
    """Return the app that the query names, else the key's own app.

    Raises NotFoundError for an app that the key may not read.
    """
    assert principal.tenant_id is not None
    app_id = query.app or principal.app_id
    if app_id is None or app_id == principal.app_id:
        return app_id
    if principal.scope == "app" or not knows_app(session, principal.tenant_id, app_id):
        raise NotFoundError("there is no such app", param="app")
    return app_id


def knows_app(session: Session, tenant_id: str, app_id: str) -> bool:
    """Return whether the tenant has this app, or the rollups contain usage of it."""
    present = select(App.id).where(App.id == app_id, App.tenant_id == tenant_id)
    past = select(UsageCalls.app_id).where(
        UsageCalls.level == "day_app",
        UsageCalls.tenant_id == tenant_id,
        UsageCalls.app_id == app_id,
    )
    return session.scalar(present) is not None or session.scalar(past.limit(1)) is not None
