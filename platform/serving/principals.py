"""FastAPI dependency of endpoints for apps."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from fairserve.platform.tenancy.auth import Principal, require_scope
from fairserve.platform.tenancy.principals import authenticated


async def calling_app(request: Request) -> Principal:
    """Dependency: the app whose key the request carries. Raises a FairServeError."""
    return require_scope(await authenticated(request.scope), "app")


AppPrincipal = Annotated[Principal, Depends(calling_app)]
