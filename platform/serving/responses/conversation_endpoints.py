"""``/v1/conversations``, for app keys."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from fairserve.platform.db.schemas import ObjectId, Strict
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.serving.responses.conversations import Conversations
from fairserve.platform.serving.responses.endpoints import ItemsQuery, written
from fairserve.platform.serving.responses.items import read_items
from fairserve.platform.serving.responses.schemas import Metadata

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])

MAX_ADDED = 20
"""Items of one request, as OpenAI allows."""
Added = Annotated[list[dict[str, Any]], Field(max_length=MAX_ADDED)]
ItemId = Annotated[str, Path(min_length=1, max_length=128)]


class ConversationCreate(Strict):
    """A conversation, empty or with its first items."""

    items: Added | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Strict):
    """New metadata; null: none."""

    metadata: Metadata | None


class ItemsCreate(Strict):
    """Items to add."""

    items: Annotated[Added, Field(min_length=1)]


@router.post("")
async def create_conversation(
    request: Request, principal: AppPrincipal, body: ConversationCreate
) -> dict[str, Any]:
    """Create a conversation."""
    items = read_items(body.items, "items") if body.items else []
    return await _service(request).create(principal, body.metadata or {}, items)


@router.get("/{conversation_id}")
async def read_conversation(
    conversation_id: ObjectId, request: Request, principal: AppPrincipal
) -> dict[str, Any]:
    """One conversation, without its items."""
    return await _service(request).get(principal, conversation_id)


@router.post("/{conversation_id}")
async def update_conversation(
    conversation_id: ObjectId, request: Request, principal: AppPrincipal, body: ConversationUpdate
) -> dict[str, Any]:
    """Replace the metadata."""
    return await _service(request).update(principal, conversation_id, body.metadata or {})


@router.delete("/{conversation_id}")
async def delete_conversation(
    conversation_id: ObjectId, request: Request, principal: AppPrincipal
) -> dict[str, Any]:
    """Delete a conversation and its items."""
    return await _service(request).delete(principal, conversation_id)


@router.post("/{conversation_id}/items", response_model=None)
async def add_items(
    conversation_id: ObjectId, request: Request, principal: AppPrincipal, body: ItemsCreate
) -> Response:
    """Add items at the end."""
    items = read_items(body.items, "items")
    return await written(await _service(request).add(principal, conversation_id, items))


@router.get("/{conversation_id}/items", response_model=None)
async def list_items(
    conversation_id: ObjectId,
    request: Request,
    principal: AppPrincipal,
    query: Annotated[ItemsQuery, Query()],
) -> Response:
    """A page of the items."""
    found = await _service(request).items(
        principal, conversation_id, limit=query.limit, order=query.order, after=query.after
    )
    return await written(found)


@router.get("/{conversation_id}/items/{item_id}", response_model=None)
async def read_item(
    conversation_id: ObjectId, item_id: ItemId, request: Request, principal: AppPrincipal
) -> Response:
    """One item."""
    return await written(await _service(request).item(principal, conversation_id, item_id))


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(
    conversation_id: ObjectId, item_id: ItemId, request: Request, principal: AppPrincipal
) -> dict[str, Any]:
    """Delete an item; later responses do not read it."""
    return await _service(request).remove(principal, conversation_id, item_id)


def _service(request: Request) -> Conversations:
    service: Conversations = request.app.state.conversations
    return service
