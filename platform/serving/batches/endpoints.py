"""``/v1/batches``, for app keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from fairserve.platform.serving.batches.schemas import (
    BatchCreate,
    BatchList,
    BatchOut,
    BatchQuery,
)
from fairserve.platform.serving.batches.service import Batches
from fairserve.platform.serving.files.endpoints import owner_of
from fairserve.platform.serving.principals import AppPrincipal

router = APIRouter(prefix="/v1/batches", tags=["batches"])


@router.post("")
async def create_batch(query: BatchCreate, request: Request, principal: AppPrincipal) -> BatchOut:
    """Make the calls of a file in the background."""
    return BatchOut.of(await _batches(request).create(owner_of(principal), query))


@router.get("")
async def list_batches(
    request: Request, principal: AppPrincipal, query: Annotated[BatchQuery, Query()]
) -> BatchList:
    """List the app's batches, newest first."""
    batches, has_more = await _batches(request).page(owner_of(principal), query)
    return BatchList.of([BatchOut.of(batch) for batch in batches], has_more)


@router.get("/{batch_id}")
async def read_batch(batch_id: str, request: Request, principal: AppPrincipal) -> BatchOut:
    """Return the state of a batch."""
    return BatchOut.of(await _batches(request).find(owner_of(principal), batch_id))


@router.post("/{batch_id}/cancel")
async def cancel_batch(batch_id: str, request: Request, principal: AppPrincipal) -> BatchOut:
    """Cancel a batch; the results that it has become files."""
    return BatchOut.of(await _batches(request).cancel(owner_of(principal), batch_id))


def _batches(request: Request) -> Batches:
    batches: Batches = request.app.state.batches
    return batches
