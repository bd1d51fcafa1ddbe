"""Tables of reports that a background job generates, and of their files in parts.

Files are stored in the database, so that any process can serve them. Ids of tenants and apps are not
foreign keys, because reports may cover purged apps; a purge deletes exports by these ids.
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
    """Tenant that the report covers; null for all tenants."""
    app_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    """App that the report covers; null for all apps."""
    user_id: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """User that the report covers; null for all users."""
    names_users: Mapped[bool]
    """True if the file may contain user ids, or covers one user."""
    kind: Mapped[str] = mapped_column(String(16))
    format: Mapped[str] = mapped_column(String(16))
    query: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The other parameters of the request, unchanged."""
    state: Mapped[str] = mapped_column(String(16))
    """``queued``, ``running``, ``ready``, ``failed`` or ``expired``."""
    attempt: Mapped[int]
    """Number of the last attempt; the file consists of its parts only."""
    lost: Mapped[int]
    """Number of attempts whose lease expired."""
    lease_until: Mapped[datetime | None]
    """End of the lease of a running attempt; it counts as lost unless renewed before."""
    progress: Mapped[float | None]
    """Fraction done, from 0 to 1; null if it is unknown."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """Bytes of the file stored so far."""
    sha256: Mapped[str | None] = mapped_column(String(64))
    """SHA-256 of the whole file, hexadecimal."""
    error: Mapped[str] = mapped_column(String(TEXT_CHARS))
    """Reason of the failure."""
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    """Start of the last attempt."""
    finished_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    """Time at which the file is deleted, set when the export finishes; the row is deleted later."""


class ReportExportPart(Base):
    """A part of a file. A reader reads the parts of one attempt, never of two."""

    __tablename__ = "report_export_parts"

    export_id: Mapped[str] = mapped_column(
        ForeignKey("report_exports.id", ondelete="CASCADE"), primary_key=True
    )
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Index of the part, from 0."""
    data: Mapped[bytes] = mapped_column(LargeBinary)
