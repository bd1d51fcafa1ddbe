"""Whose usage and refusals a key may read: an app's, a tenant's, or those of one an admin key names."""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import InvalidRequestError, NotFoundError
from fairserve.platform.reporting.usage import reports
from fairserve.platform.reporting.usage.schemas import UsageQuery
from fairserve.platform.tenancy.auth import CurrentPrincipal, Principal, require_tenant


class NamesApp(Protocol):
    """A query that may name an app."""

    @property
    def app(self) -> str | None:
        """Its id; None where none is named."""
        ...


async def _reader(principal: CurrentPrincipal, request: Request) -> Principal:
    """An app key, a tenant key, or an admin key that names a tenant."""
    if principal.scope != "app":
        return await require_tenant(principal, request)
    if request.query_params.get("tenant", principal.tenant_id) != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal


Reader = Annotated[Principal, Depends(_reader)]


def asked_app(session: Session, principal: Principal, query: NamesApp) -> str | None:
    """The app that is asked for, or the key's own. Raises NotFoundError for anybody else's."""
    assert principal.tenant_id is not None
    app_id = query.app or principal.app_id
    if app_id is None or app_id == principal.app_id:
        return app_id
    if principal.scope == "app" or not reports.knows_app(session, principal.tenant_id, app_id):
        raise NotFoundError("there is no such app", param="app")
    return app_id


def refuse_tenant_groups(query: UsageQuery) -> None:
    """Who reads one tenant's usage has no use for them. Raises InvalidRequestError."""
    if "tenant" in query.group_by:
        raise InvalidRequestError("allowed groups: app, user, model, day, hour", param="group_by")
