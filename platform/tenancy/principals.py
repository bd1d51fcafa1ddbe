"""FastAPI dependencies for the owner of a request's key.

The rules are in :mod:`fairserve.platform.tenancy.auth`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from fairserve.platform.base.bulkhead import work_for
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.tenancy.auth import (
    Authenticator,
    Principal,
    key_of,
    require_scope,
    tenant_principal,
)
from fairserve.platform.tenancy.roles import needed_role, require_role


async def authenticated(scope: Scope) -> Principal:
    """Return the principal of a request's key (:func:`key_of`), of any scope and role.

    From then on the request's work in threads is that of its tenant. The server calls it before it reads
    the body (:mod:`fairserve.platform.server.http`). The answer holds for the whole request, whether it
    is a principal or an error.
    """
    state = scope.setdefault("state", {})
    known: Principal | None = state.get("principal")
    if known is not None:
        return known
    raise_if_rejected(scope)
    authenticator: Authenticator = scope["app"].state.authenticator
    work_for(address_of(scope))
    try:
        principal = await authenticator.authenticate(key_of(Headers(raw=scope["headers"])))
    except FairServeError as error:
        state["key_error"] = error
        raise
    state["principal"] = principal
    work_for(principal.sharer)
    return principal


def address_of(scope: Scope) -> str:
    """Return the owner of the work for a client that is not known yet: its address."""
    client = scope.get("client")
    return f"address {client[0]}" if client is not None else ""


def raise_if_rejected(scope: Scope) -> None:
    """Raise the error of a request's key, if it was looked up before and is not valid."""
    error: FairServeError | None = scope.get("state", {}).get("key_error")
    if error is not None:
        raise error


async def current_principal(request: Request) -> Principal:
    """Provide the principal of a key, of any scope; an admin key needs the role of the route."""
    principal = await authenticated(request.scope)
    if principal.scope == "admin":
        require_role(principal.role, needed_role(route_of(request)))
    return principal


def route_of(request: Request) -> str:
    """Return method and path of the route, as :data:`fairserve.platform.tenancy.roles.NEEDED` has it."""
    return f"{request.method} {request.scope['route'].path}"


CurrentPrincipal = Annotated[Principal, Depends(current_principal)]


async def require_tenant(principal: CurrentPrincipal, request: Request) -> Principal:
    """Require a tenant key, or an admin key with ``?tenant=<id>`` (:func:`tenant_principal`)."""
    return tenant_principal(principal, request.query_params.get("tenant"))


async def require_admin(principal: CurrentPrincipal) -> Principal:
    """Require an admin key with the role of the route."""
    return require_scope(principal, "admin")


TenantPrincipal = Annotated[Principal, Depends(require_tenant)]
AdminPrincipal = Annotated[Principal, Depends(require_admin)]
