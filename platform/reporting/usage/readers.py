"""Access to usage and rejections by the kind of key: one app, one tenant, or a tenant that is named."""

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
        """Return the app's id; None if the query names none."""
        ...


async def _reader(principal: CurrentPrincipal, request: Request) -> Principal:
    """Accept an app key, a tenant key, or an admin key that names a tenant."""
    if principal.scope != "app":
        return await require_tenant(principal, request)
    if request.query_params.get("tenant", principal.tenant_id) != principal.tenant_id:
        raise NotFoundError("there is no such tenant", param="tenant")
    return principal


Reader = Annotated[Principal, Depends(_reader)]


def asked_app(session: Session, principal: Principal, query: NamesApp) -> str | None:
    """Return the requested app, or the key's own. Raises NotFoundError for another owner's app."""
    assert principal.tenant_id is not None
    app_id = query.app or principal.app_id
    if app_id is None or app_id == principal.app_id:
        return app_id
    if principal.scope == "app" or not reports.knows_app(session, principal.tenant_id, app_id):
        raise NotFoundError("there is no such app", param="app")
    return app_id


def refuse_tenant_groups(query: UsageQuery) -> None:
    """Raise InvalidRequestError for a group by tenant: a tenant reads only its own usage."""
    if "tenant" in query.group_by:
        raise InvalidRequestError("allowed groups: app, user, model, day, hour", param="group_by")
