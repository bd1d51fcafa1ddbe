"""Sessions of the console, one row per sign-in."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, Base


class ConsoleSession(Base):
    """A sign-in with a key. It ends when the key or its tenant ends, or when it expires."""

    __tablename__ = "console_sessions"
    __table_args__ = (Index(None, "key_id", "created_at"), Index(None, "expires_at"))

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    """Hash of the cookie's value; the value itself is not stored."""
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"))
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    """Time of the last request, to the minute."""
    expires_at: Mapped[datetime]
