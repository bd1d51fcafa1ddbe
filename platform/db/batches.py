"""Tables of uploaded and generated files, and of batches of calls.

A file is stored in parts in the database, or outside of it (``file_store_url``); its row is here in both
cases. A batch continues after a restart from its results: one row for each line that has ended. The
purge of an app deletes all of them; files end earlier, when their app is deleted.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, Base


class File(Base):
    """A file of an app."""

    __tablename__ = "files"
    __table_args__ = (
        Index(None, "tenant_id"),
        Index(None, "app_id", "created_at"),
        Index(None, "expires_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS))
    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(NAME_CHARS))
    purpose: Mapped[str] = mapped_column(String(16))
    """``batch`` or ``batch_output``."""
    state: Mapped[str] = mapped_column(String(16))
    """``writing``, ``ready``, or ``abandoned``, which is deleted next."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """Size of the content; while it is written, the bytes reserved for it."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    """Time at which the file is deleted."""


class FilePart(Base):
    """A part of a file in the database."""

    __tablename__ = "file_parts"

    file_id: Mapped[str] = mapped_column(
        ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Index of the part, from 0."""
    data: Mapped[bytes] = mapped_column(LargeBinary)


class Batch(Base):
    """A batch of calls, read from the lines of a file."""

    __tablename__ = "batches"
    __table_args__ = (
        Index(None, "app_id", "created_at"),
        Index(None, "state", "created_at"),
        Index(None, "input_file_id"),
        Index(None, "ended_at"),
    )

    id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS))
    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"))
    endpoint: Mapped[str] = mapped_column(String(64))
    input_file_id: Mapped[str] = mapped_column(String(ID_CHARS))
    completion_window: Mapped[str] = mapped_column(String(16))
    labels: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    """The client's ``metadata``."""
    output_expires_s: Mapped[int | None]
    """Seconds after their creation for which its output files are kept; null: the server's retention."""
    state: Mapped[str] = mapped_column(String(16))
    """OpenAI's status."""
    attempt: Mapped[int]
    """Number of the last claim, which fences its writes."""
    lease_until: Mapped[datetime | None]
    """End of the lease of the process that runs the batch."""
    total: Mapped[int]
    completed: Mapped[int]
    failed: Mapped[int]
    result_bytes: Mapped[int] = mapped_column(BigInteger)
    """Bytes of its results that are not in a file yet."""
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    output_file_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    error_file_id: Mapped[str | None] = mapped_column(String(ID_CHARS))
    created_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    expires_at: Mapped[datetime]
    """End of the completion window."""
    ended_at: Mapped[datetime | None]


class BatchResult(Base):
    """The result of one line."""

    __tablename__ = "batch_results"

    batch_id: Mapped[str] = mapped_column(
        ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True
    )
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Number of the line in the input file, from 1."""
    succeeded: Mapped[bool]
    """True if the result belongs in the output file, false for the error file."""
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """The line of that file."""
