"""Tables of declared programs and the progress of their runs; a restart continues them.

A step is the record of a node or a task (:mod:`fairserve.interactions.programs.program_state`) with
the output texts of its calls, stored as JSON because JSON can represent any text. The retention of
programs is shorter than the ledger's; the purge of an app deletes its programs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, ForeignKeyConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, NAME_CHARS, TEXT_CHARS, Base
from fairserve.platform.db.ledger import WIDE_ID_CHARS


class ProgramRow(Base):
    """A program that an app submitted; its id is that of its interaction."""

    __tablename__ = "programs"
    __table_args__ = (Index(None, "app_id"), Index(None, "state"), Index(None, "ended_at"))

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(ForeignKey("apps.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(NAME_CHARS))
    attempt: Mapped[int]
    """Number of the last claim, which fences its writes."""
    lease_until: Mapped[datetime | None]
    """End of the lease of the process that runs the program."""
    declaration: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The declaration as accepted."""
    limits: Mapped[dict[str, int]] = mapped_column(JSON)
    """Limits at the time of acceptance; the fields of ``ProgramLimits``."""
    state: Mapped[str] = mapped_column(String(16))
    """``running``, ``complete``, ``failed`` or ``cancelled``."""
    reason: Mapped[str] = mapped_column(String(TEXT_CHARS))
    """Reason of the cancellation or failure; of a running program, that of the cancellation to come."""
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ProgramStep(Base):
    """State of one node or one task of a program."""

    __tablename__ = "program_steps"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "app_id", "program_id"],
            ["programs.tenant_id", "programs.app_id", "programs.id"],
            ondelete="CASCADE",
        ),
    )

    tenant_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    app_id: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    program_id: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    """``node`` or ``task``."""
    name: Mapped[str] = mapped_column(String(WIDE_ID_CHARS), primary_key=True)
    record: Mapped[dict[str, Any]] = mapped_column(JSON)
