"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``, for app keys."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.types import ASGIApp

from fairserve.platform.serving.call_router import CallRouter, IncomingCall
from fairserve.platform.serving.completions.endpoint import Endpoint
from fairserve.platform.serving.completions.openai_endpoint import (
    CHAT_COMPLETIONS,
    TEXT_COMPLETIONS,
)
from fairserve.platform.serving.completions.schemas import ChatBody, TextBody
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.messages.errors import VERSION_HEADER
from fairserve.platform.serving.messages.models import message_model, message_models
from fairserve.platform.serving.principals import AppPrincipal

router = CallRouter(prefix="/v1", tags=["completions"])


@router.call("/chat/completions", ChatBody)
async def chat_completions(call: IncomingCall) -> ASGIApp:
    """OpenAI's chat completions."""
    return await answer(CHAT_COMPLETIONS, call)


@router.call("/completions", TextBody)
async def completions(call: IncomingCall) -> ASGIApp:
    """OpenAI's (text) completions, one prompt a call."""
    return await answer(TEXT_COMPLETIONS, call)


@router.get("/models")
async def list_models(request: Request, principal: AppPrincipal) -> dict[str, Any]:
    """The models that are served and allowed, and the aliases that lead to one.

    In Anthropic's format for requests with ``anthropic-version``.
    """
    entries = _service(request).listings(principal)
    if VERSION_HEADER in request.headers:
        return message_models(entries)
    return {"object": "list", "data": entries}


@router.get("/models/{model:path}")
async def read_model(model: str, request: Request, principal: AppPrincipal) -> dict[str, Any]:
    """One model or alias."""
    entry = _service(request).listing(model, principal)
    return message_model(entry) if VERSION_HEADER in request.headers else entry


async def answer(endpoint: Endpoint, call: IncomingCall) -> ASGIApp:
    """Return the answer of an endpoint to a call."""
    service: Completions = call.services.completions
    return await service.answer(endpoint, call.raw, call.headers, call.principal, call.reservation)


def _service(request: Request) -> Completions:
    service: Completions = request.app.state.completions
    return service
