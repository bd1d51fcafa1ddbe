"""Conversations of apps: lists of items that their responses read and extend.

A conversation is one interaction: its id is the run of its calls where their client names none. It
belongs to the user of its first response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar

import orjson
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, InvalidRequestError, NotFoundError
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory
from fairserve.platform.db.responses import ConversationItem, StoredConversation
from fairserve.platform.db.rows import delete_some, has_key
from fairserve.platform.serving.in_database import read_in, write_in
from fairserve.platform.serving.kept_rows import KeptRows
from fairserve.platform.serving.responses.items import Item, with_new_ids
from fairserve.platform.serving.responses.options import StoreOptions
from fairserve.platform.serving.responses.repository import ResponseKey as ObjectKey

T = TypeVar("T")
_within = partial(has_key, ConversationItem)
_is = partial(has_key, StoredConversation)

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of one conversation."""


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The items of a conversation and its user, as a response reads them."""

    items: Sequence[Item]
    user: str | None
    """None: no response has set it yet."""


class Conversations:
    """Reads and writes in threads. Methods raise UnavailableError while the database is down."""

    def __init__(self, sessions: SessionFactory, options: StoreOptions = StoreOptions()) -> None:
        self._sessions = sessions
        self._enabled = options.response_store
        self._bounds = KeptRows(
            StoredConversation,
            StoredConversation.changed_at,
            of_app=options.of_app,
            of_tenant=options.of_tenant,
            size=StoredConversation.size_bytes,
        )

    async def create(
        self, key: ObjectKey, metadata: dict[str, str], items: list[Item]
    ) -> dict[str, Any]:
        """Create a conversation with a new key, and return it."""
        if not self._enabled:
            raise InvalidRequestError(
                "this server stores no conversations", code="unsupported_parameter"
            )
        now = utc_now()
        row = StoredConversation(
            tenant_id=key.tenant,
            app_id=key.app,
            id=key.id,
            user_id=key.app,
            details=metadata,
            created_at=now,
            changed_at=now,
            next_position=0,
            size_bytes=0,
        )

        def write(session: Session) -> dict[str, Any]:
            session.add(row)
            session.flush()
            self._bounds.add(session, key.tenant, key.app, 1, 0)
            self.append(session, key, items)
            return _shown(row)

        return await self._write(write)

    async def get(self, key: ObjectKey) -> dict[str, Any]:
        """Return a conversation. Raises NotFoundError."""
        return await read_in(self._sessions, lambda session: _shown(_found(session, key)))

    async def update(self, key: ObjectKey, metadata: dict[str, str]) -> dict[str, Any]:
        """Replace the metadata of a conversation, and return it. Raises NotFoundError."""

        def write(session: Session) -> dict[str, Any]:
            row = _found(session, key, lock=True)
            row.details = metadata
            return _shown(row)

        return await self._write(write)

    async def delete(self, key: ObjectKey) -> dict[str, Any]:
        """Delete a conversation and its items. Raises NotFoundError."""

        def write(session: Session) -> None:
            _found(session, key)
            session.execute(delete(StoredConversation).where(_is(key)))

        await self._write(write)
        return {"id": key.id, "object": "conversation.deleted", "deleted": True}

    async def add(self, key: ObjectKey, items: list[Item]) -> dict[str, Any]:
        """Add items, and return them as a list. Raises NotFoundError."""

        def write(session: Session) -> list[Item]:
            _found(session, key)
            return self.append(session, key, items) or []

        return _list(await self._write(write), more=False)

    async def items(
        self,
        key: ObjectKey,
        *,
        limit: int,
        order: Literal["asc", "desc"],
        after: str | None,
    ) -> dict[str, Any]:
        """Return a page of items. Raises NotFoundError, InvalidRequestError for an unknown ``after``."""
        row = ConversationItem

        def read(session: Session) -> list[Item]:
            _found(session, key)
            query = select(row.item).where(_within(key))
            if after is not None:
                known = select(row.position).where(_within(key), row.item_id == after)
                position = session.scalars(known.limit(1)).first()
                if position is None:
                    raise InvalidRequestError("after: there is no such item", param="after")
                later = row.position > position if order == "asc" else row.position < position
                query = query.where(later)
            ordered = row.position.asc() if order == "asc" else row.position.desc()
            return list(session.scalars(query.order_by(ordered).limit(limit + 1)))

        found = await read_in(self._sessions, read)
        return _list(found[:limit], more=len(found) > limit)

    async def item(self, key: ObjectKey, item_id: str) -> Item:
        """Return an item. Raises NotFoundError."""
        return await read_in(
            self._sessions, lambda session: _found_item(session, key, item_id).item
        )

    async def remove(self, key: ObjectKey, item_id: str) -> dict[str, Any]:
        """Delete an item, and return its conversation. Raises NotFoundError."""

        def write(session: Session) -> dict[str, Any]:
            row = _found(session, key, lock=True)
            item = _found_item(session, key, item_id)
            row.size_bytes -= item.size_bytes
            session.delete(item)
            return _shown(row)

        return await self._write(write)

    async def state(self, key: ObjectKey, require_size: Callable[[int], None]) -> ConversationState:
        """Return a conversation for a response. ``require_size`` raises for too many bytes.

        Raises NotFoundError.
        """

        def read(session: Session) -> ConversationState:
            row = _found(session, key)
            require_size(row.size_bytes)
            found = select(ConversationItem.item).where(_within(key))
            items = session.scalars(found.order_by(ConversationItem.position)).all()
            return ConversationState(items, None if row.user_id == key.app else row.user_id)

        return await read_in(self._sessions, read)

    def append(
        self, session: Session, key: ObjectKey, items: Sequence[Item], user: str | None = None
    ) -> list[Item] | None:
        """Add items in the caller's transaction; return them with ids, None without a conversation.

        The first ``user`` is the conversation's. Raises InvalidRequestError if it has no space.
        """
        row = session.scalars(select(StoredConversation).where(_is(key)).with_for_update()).first()
        if row is None:
            return None
        given = [item["id"] for item in items if "id" in item]
        known = select(ConversationItem.item_id).where(
            _within(key), ConversationItem.item_id.in_(given)
        )
        added = with_new_ids(items, session.scalars(known) if given else ())
        size_bytes = 0
        for item in added:
            item_bytes = len(orjson.dumps(item))
            size_bytes += item_bytes
            session.add(
                ConversationItem(
                    tenant_id=key.tenant,
                    app_id=key.app,
                    conversation_id=key.id,
                    position=row.next_position,
                    item_id=item["id"],
                    item=item,
                    size_bytes=item_bytes,
                )
            )
            row.next_position += 1
        row.size_bytes += size_bytes
        if row.size_bytes > MAX_BYTES:
            raise InvalidRequestError(
                f"conversation: it would have {row.size_bytes} bytes; allowed: {MAX_BYTES}. Begin a"
                " new one",
                param="conversation",
            )
        row.changed_at = utc_now()
        if user is not None and row.user_id == key.app:
            row.user_id = user
        session.flush()
        self._bounds.add(session, key.tenant, key.app, 0, size_bytes)
        return added

    async def _write(self, write: Callable[[Session], T]) -> T:
        try:
            return await write_in(self._sessions, write)
        except IntegrityError as error:
            raise ConflictError("another request changed the conversation; retry") from error


def delete_before(session: Session, time: datetime, *, max_rows: int = 1_000) -> int:
    """Delete conversations that did not change since ``time``, with their items."""
    return delete_some(session, StoredConversation, StoredConversation.changed_at < time, max_rows)


def _found(session: Session, key: ObjectKey, *, lock: bool = False) -> StoredConversation:
    row = session.get(StoredConversation, tuple(key), with_for_update=lock or None)
    if row is None:
        raise NotFoundError("there is no such conversation", param="conversation")
    return row


def _found_item(session: Session, key: ObjectKey, item_id: str) -> ConversationItem:
    _found(session, key)
    query = select(ConversationItem).where(_within(key), ConversationItem.item_id == item_id)
    item = session.scalars(query.order_by(ConversationItem.position).limit(1)).first()
    if item is None:
        raise NotFoundError("there is no such item", param="item_id")
    return item


def _shown(row: StoredConversation) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "conversation",
        "created_at": int(row.created_at.timestamp()),
        "metadata": row.details,
    }


def _list(items: Sequence[Item], *, more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": more,
    }
