"""Queries on the versions of the throttling settings."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from fairserve.platform.db.operations import ThrottlingSetting


def history() -> Select[ThrottlingSetting]:
    """Return the statement of the versions, newest first."""
    return select(ThrottlingSetting).order_by(ThrottlingSetting.version.desc())


def version_at(session: Session, time: datetime) -> int:
    """Return the version in force at a time; 0 if there was none."""
    found = session.scalar(
        select(ThrottlingSetting.version)
        .where(ThrottlingSetting.created_at <= time)
        .order_by(ThrottlingSetting.version.desc())
        .limit(1)
    )
    return found or 0
