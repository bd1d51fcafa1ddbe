"""Tables of stored responses and conversations: prompts and answers that apps asked to keep.

Items are stored as JSON because JSON can represent any text. The purge of an app deletes its rows, the
erasure of a user those of the user, and their retention is shorter than the ledger's.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, ForeignKeyConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base
from fairserve.platform.db.ledger import WIDE_ID_CHARS

ITEM_ID_CHARS = 128
"""Maximum length of the id of an item, which clients may choose."""


class StoredResponse(Base):
    """A response that an app can read and continue."""

    __tablename__ = "stored_responses"
    __table_args__ = (
        Index(None, "app_id", "created_at"),
        Index(None, "tenant_id", "user_id"),
        Index(None, "created_at"),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    run_id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS))
    """Client's id of the interaction of its call."""
    call_id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS))
    """Client's id of its call."""
    previous_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    """Response that it continues."""
    conversation_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    status: Mapped[str] = mapped_column(String(16))
    """``queued`` in the background until it ends, then the status of the response."""
    lease_until: Mapped[datetime | None]
    """End of the lease of the process that runs it in the background."""
    created_at: Mapped[datetime]
    items: Mapped[list[Any]] = mapped_column(JSON)
    """Items of its own input."""
    response: Mapped[dict[str, Any]] = mapped_column(JSON)
    size_bytes: Mapped[int]
    """Bytes of items and response."""


class StoredConversation(Base):
    """A conversation of an app, which its responses extend."""

    __tablename__ = "stored_conversations"
    __table_args__ = (
        Index(None, "app_id", "changed_at"),
        Index(None, "tenant_id", "user_id"),
        Index(None, "changed_at"),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    """User of its first response; the app before."""
    details: Mapped[dict[str, str]] = mapped_column(JSON)
    """The ``metadata`` of its client."""
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
    """Time at which items were added last."""
    next_position: Mapped[int]
    """Position of the next item."""
    size_bytes: Mapped[int]
    """Bytes of all its items."""


class ConversationItem(Base):
    """An item of a conversation."""

    __tablename__ = "stored_conversation_items"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "app_id", "conversation_id"],
            [
                "stored_conversations.tenant_id",
                "stored_conversations.app_id",
                "stored_conversations.id",
            ],
            ondelete="CASCADE",
        ),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    conversation_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    """Order within the conversation."""
    item_id: Mapped[str] = mapped_column(String(ITEM_ID_CHARS))
    item: Mapped[dict[str, Any]] = mapped_column(JSON)
    size_bytes: Mapped[int]
