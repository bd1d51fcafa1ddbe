"""Sessions of the console, one row per sign-in."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.base.roles import Role
from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base


class ConsoleSession(Base):
    """A sign-in with a key, or of a person at an OpenID provider. It ends when it expires; that of a key
    ends with the key or its tenant, too.
    """

    __tablename__ = "console_sessions"
    __table_args__ = (
        Index(None, "key_id", "created_at"),
        Index("ix_console_sessions_subject_created_at", "subject", "created_at"),
        Index(None, "expires_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    """Hash of the cookie's value; the value itself is not stored."""
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"))
    """Null for a person; the next four columns are then set."""
    issuer: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    subject: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Id of the person at the issuer."""
    name: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name or mail address of the person, for display."""
    role: Mapped[Role | None] = mapped_column(String(16))
    """Role of the person at the sign-in."""
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    """Time of the last request, to the minute."""
    expires_at: Mapped[datetime]
