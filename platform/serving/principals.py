"""The FastAPI dependency of endpoints for apps: an adapter of the decision service."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.principals import raise_if_rejected


async def calling_app(request: Request) -> Principal:
    """Dependency: the app whose key the request carries."""
    decisions: DecisionService = request.app.state.decisions
    known: Principal | None = getattr(request.state, "principal", None)
    raise_if_rejected(request)
    answer = await decisions.authenticate(request.headers, known)
    if isinstance(answer, Rejection):
        raise answer.error
    request.state.principal = answer
    return answer


AppPrincipal = Annotated[Principal, Depends(calling_app)]
