"""Reports that are made in the background, and their files in parts.

Files are in the database, so that any process can serve what any other has made. Ids of tenants and apps
are plain, because reports reach further back than their rows do; a purge deletes exports by those ids.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, TEXT_CHARS, Base


class ReportExport(Base):
    """A requested report: its query, its owner, and its progress."""

    __tablename__ = "report_exports"
    __table_args__ = (
        Index(None, "tenant_id", "created_at"),
        Index(None, "state", "created_at"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    asked_by: Mapped[str] = mapped_column(String(16))
    """``app``, ``tenant`` or ``operator``: who may see it."""
    tenant_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    """Tenant whose usage it holds; null for all tenants."""
    app_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    """Null: of all apps."""
    user_id: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Null: of all users."""
    names_users: Mapped[bool]
    """True if the file may hold ids of users, or is about one."""
    kind: Mapped[str] = mapped_column(String(16))
    format: Mapped[str] = mapped_column(String(16))
    query: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The other parameters as they were given."""
    state: Mapped[str] = mapped_column(String(16))
    """``queued``, ``running``, ``ready``, ``failed`` or ``expired``."""
    attempt: Mapped[int]
    """Number of the last one; only its parts are of the file."""
    lost: Mapped[int]
    """Attempts that were never heard of again."""
    lease_until: Mapped[datetime | None]
    """A running one that is not extended until then is lost."""
    progress: Mapped[float | None]
    """Between 0 and 1 where it is known."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """Bytes kept of the file, also while it is made."""
    sha256: Mapped[str | None] = mapped_column(String(64))
    """Digest of the whole file, hexadecimal."""
    error: Mapped[str] = mapped_column(String(TEXT_CHARS))
    """Why it failed."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """Begin of the last attempt."""
    finished_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    """Set when it is finished; the file goes then, and the row somewhat later."""


class ReportExportPart(Base):
    """A piece of a file. A reader takes those of one attempt, so it never sees a mixture."""

    __tablename__ = "report_export_parts"

    export_id: Mapped[str] = mapped_column(
        ForeignKey("report_exports.id", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """From 0."""
    data: Mapped[bytes] = mapped_column(LargeBinary)
