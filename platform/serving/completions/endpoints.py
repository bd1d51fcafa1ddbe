"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``, for app keys."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from fairserve.platform.serving.bodies import RESERVATION, BodyReservation
from fairserve.platform.serving.completions.endpoint import Endpoint
from fairserve.platform.serving.completions.openai_endpoint import (
    CHAT_COMPLETIONS,
    TEXT_COMPLETIONS,
)
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.tenancy.auth import Principal

router = APIRouter(prefix="/v1", tags=["completions"])


@router.post("/chat/completions", response_model=None)
async def chat_completions(request: Request, principal: AppPrincipal) -> Response:
    """OpenAI's chat completions."""
    return await _answer(CHAT_COMPLETIONS, request, principal)


@router.post("/completions", response_model=None)
async def completions(request: Request, principal: AppPrincipal) -> Response:
    """OpenAI's (text) completions, one prompt a call."""
    return await _answer(TEXT_COMPLETIONS, request, principal)


@router.get("/models")
async def list_models(request: Request, principal: AppPrincipal) -> dict[str, Any]:
    """The models that are served and allowed, and the aliases that lead to one."""
    return {"object": "list", "data": _service(request).listings(principal)}


@router.get("/models/{model:path}")
async def read_model(model: str, request: Request, principal: AppPrincipal) -> dict[str, Any]:
    """One model or alias."""
    return _service(request).listing(model, principal)


async def _answer(endpoint: Endpoint, request: Request, principal: Principal) -> Response:
    raw = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    reservation: BodyReservation | None = getattr(request.state, RESERVATION, None)
    return await _service(request).answer(endpoint, raw, headers, principal, reservation)


def _service(request: Request) -> Completions:
    service: Completions = request.app.state.completions
    return service
