"""``/v1/embeddings`` and ``/v1/rerank``, for app keys."""

from __future__ import annotations

from starlette.types import ASGIApp

from fairserve.platform.serving.call_router import CallRouter, IncomingCall
from fairserve.platform.serving.completions.endpoints import answer
from fairserve.platform.serving.embeddings.endpoint import EMBED, RANK
from fairserve.platform.serving.embeddings.schemas import EmbeddingBody, RerankBody

router = CallRouter(prefix="/v1", tags=["embeddings"])


@router.call("/embeddings", EmbeddingBody)
async def embeddings(call: IncomingCall) -> ASGIApp:
    """OpenAI's embeddings: one vector for each input."""
    return await answer(EMBED, call)


@router.call("/rerank", RerankBody)
async def rerank(call: IncomingCall) -> ASGIApp:
    """Documents by their relevance to a query, in the form of Jina, Cohere and vLLM."""
    return await answer(RANK, call)
