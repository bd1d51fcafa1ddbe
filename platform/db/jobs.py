"""State of the background jobs, one row each."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from fairserve.platform.db.base import ID_CHARS, TEXT_CHARS, Base


class JobState(Base):
    """The last pass of a job, and its failures since it last succeeded."""

    __tablename__ = "job_states"

    name: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    succeeded_at: Mapped[datetime | None]
    """End of the last successful pass."""
    took_s: Mapped[float | None]
    """Duration of that pass, in seconds."""
    done: Mapped[int] = mapped_column(BigInteger)
    """Rows, profiles, deliveries or files processed by that pass; 0 for the rollup."""
    failures: Mapped[int]
    """Consecutive failed passes."""
    failed_at: Mapped[datetime | None]
    error: Mapped[str] = mapped_column(String(TEXT_CHARS))
    dead_at: Mapped[datetime | None]
    """Time at which the job reached its limit of failures; an operator should investigate."""
