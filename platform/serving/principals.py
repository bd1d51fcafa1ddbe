"""The FastAPI dependency of endpoints for apps: an adapter of the decision service."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.principals import raise_if_rejected


async def app_of(scope: Scope) -> Principal:
    """Return the app whose key a request carries. Raises a FairServeError."""
    decisions: DecisionService = scope["app"].state.decisions
    state = scope.setdefault("state", {})
    raise_if_rejected(scope)
    known = state.get("principal")
    app = await decisions.authenticate(Headers(raw=scope["headers"]), known)
    state["principal"] = app
    return app


async def calling_app(request: Request) -> Principal:
    """Dependency: the app whose key the request carries."""
    return await app_of(request.scope)


AppPrincipal = Annotated[Principal, Depends(calling_app)]
