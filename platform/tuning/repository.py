"""Queries on the versions of the throttling settings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.operations import ThrottlingSetting


def history(
    session: Session, *, limit: int, offset: int
) -> tuple[Sequence[ThrottlingSetting], int]:
    """Return a page of the versions, newest first, and their number."""
    rows = session.scalars(
        select(ThrottlingSetting)
        .order_by(ThrottlingSetting.version.desc())
        .limit(limit)
        .offset(offset)
    ).all()
    return rows, session.scalar(select(func.count(ThrottlingSetting.version))) or 0


def version_at(session: Session, time: datetime) -> int:
    """Return the version in force at a time; 0 if there was none."""
    found = session.scalar(
        select(ThrottlingSetting.version)
        .where(ThrottlingSetting.created_at <= time)
        .order_by(ThrottlingSetting.version.desc())
        .limit(1)
    )
    return found or 0
