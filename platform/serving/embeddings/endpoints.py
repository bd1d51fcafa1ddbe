"""``/v1/embeddings`` and ``/v1/rerank``, for app keys."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from fairserve.platform.serving.bodies import RESERVATION, BodyReservation
from fairserve.platform.serving.completions.service import Completions
from fairserve.platform.serving.described_body import described_body
from fairserve.platform.serving.embeddings.endpoint import EMBED, RANK, PoolingEndpoint
from fairserve.platform.serving.embeddings.schemas import EmbeddingBody, RerankBody
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.tenancy.auth import Principal

router = APIRouter(prefix="/v1", tags=["embeddings"])


@router.post("/embeddings", response_model=None, openapi_extra=described_body(EmbeddingBody))
async def embeddings(request: Request, principal: AppPrincipal) -> Response:
    """OpenAI's embeddings: one vector for each input."""
    return await _answer(EMBED, request, principal)


@router.post("/rerank", response_model=None, openapi_extra=described_body(RerankBody))
async def rerank(request: Request, principal: AppPrincipal) -> Response:
    """Documents by their relevance to a query, in the form of Jina, Cohere and vLLM."""
    return await _answer(RANK, request, principal)


async def _answer(endpoint: PoolingEndpoint, request: Request, principal: Principal) -> Response:
    raw = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    reservation: BodyReservation | None = getattr(request.state, RESERVATION, None)
    service: Completions = request.app.state.completions
    return await service.answer(endpoint, raw, headers, principal, reservation)
