"""``/v1/conversations``, for app keys."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import Field

from fairserve.engine.wire.worker_json import MAX_DEPTH, is_too_deep
from fairserve.platform.base.bulkhead import off_loop
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.db.base import new_id
from fairserve.platform.db.schemas import ObjectId, Strict
from fairserve.platform.serving.principals import AppPrincipal
from fairserve.platform.serving.responses.conversations import Conversations
from fairserve.platform.serving.responses.endpoints import ItemsQuery, written
from fairserve.platform.serving.responses.items import Item, read_items
from fairserve.platform.serving.responses.repository import ResponseKey as ObjectKey
from fairserve.platform.serving.responses.schemas import Metadata

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])

MAX_ADDED = 20
"""Items of one request, as OpenAI allows."""
Added = Annotated[list[dict[str, Any]], Field(max_length=MAX_ADDED, fail_fast=True)]
ItemId = Annotated[str, Path(min_length=1, max_length=128)]


def _key(principal: AppPrincipal, conversation_id: ObjectId) -> ObjectKey:
    return ObjectKey(principal.tenant_id or "", principal.app_id or "", conversation_id)


Key = Annotated[ObjectKey, Depends(_key)]


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
    items = await _items(request, body.items) if body.items else []
    return await _service(request).create(
        _key(principal, new_id("conv")), body.metadata or {}, items
    )


@router.get("/{conversation_id}")
async def read_conversation(key: Key, request: Request) -> dict[str, Any]:
    """One conversation, without its items."""
    return await _service(request).get(key)


@router.post("/{conversation_id}")
async def update_conversation(
    key: Key, request: Request, body: ConversationUpdate
) -> dict[str, Any]:
    """Replace the metadata."""
    return await _service(request).update(key, body.metadata or {})


@router.delete("/{conversation_id}")
async def delete_conversation(key: Key, request: Request) -> dict[str, Any]:
    """Delete a conversation and its items."""
    return await _service(request).delete(key)


@router.post("/{conversation_id}/items", response_model=None)
async def add_items(key: Key, request: Request, body: ItemsCreate) -> Response:
    """Add items at the end."""
    return await written(await _service(request).add(key, await _items(request, body.items)))


@router.get("/{conversation_id}/items", response_model=None)
async def list_items(
    key: Key,
    request: Request,
    query: Annotated[ItemsQuery, Query()],
) -> Response:
    """A page of the items."""
    found = await _service(request).items(
        key, limit=query.limit, order=query.order, after=query.after
    )
    return await written(found)


@router.get("/{conversation_id}/items/{item_id}", response_model=None)
async def read_item(key: Key, item_id: ItemId, request: Request) -> Response:
    """One item."""
    return await written(await _service(request).item(key, item_id))


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(key: Key, item_id: ItemId, request: Request) -> dict[str, Any]:
    """Delete an item; later responses do not read it."""
    return await _service(request).remove(key, item_id)


async def _items(request: Request, given: Added) -> list[Item]:
    """Return the items in their stored form, those of a large body from a thread.

    Raises InvalidRequestError naming the field.
    """
    return await off_loop(len(await request.body()), _read, given)


def _read(given: Added) -> list[Item]:
    if is_too_deep({"items": given}):
        text = f"items: nested too deeply; allowed: {MAX_DEPTH} levels"
        raise InvalidRequestError(text, param="items")
    try:
        orjson.dumps(given)  # FastAPI also reads half of a surrogate pair, and any integer
    except TypeError as error:
        raise InvalidRequestError(f"items: {error}", param="items") from error
    return read_items(given, "items")


def _service(request: Request) -> Conversations:
    service: Conversations = request.app.state.conversations
    return service
