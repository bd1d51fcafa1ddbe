"""Queries on the versions of the throttling settings, and on refusals."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.ledger import ThrottlingEvent
from fairserve.platform.db.operations import ThrottlingSetting
from fairserve.platform.throttling.schemas import EventQuery


def current(session: Session) -> ThrottlingSetting | None:
    """The version in force; None while the server's settings hold."""
    return session.scalars(
        select(ThrottlingSetting).order_by(ThrottlingSetting.version.desc()).limit(1)
    ).one_or_none()


def history(
    session: Session, *, limit: int, offset: int
) -> tuple[Sequence[ThrottlingSetting], int]:
    """Versions, newest first, and how many there are."""
    rows = session.scalars(
        select(ThrottlingSetting)
        .order_by(ThrottlingSetting.version.desc())
        .limit(limit)
        .offset(offset)
    ).all()
    return rows, session.scalar(select(func.count(ThrottlingSetting.version))) or 0


def events(session: Session, query: EventQuery) -> tuple[Sequence[ThrottlingEvent], int]:
    """Refusals, newest first, and how many there are."""
    conditions = _conditions(query)
    rows = session.scalars(
        select(ThrottlingEvent)
        .where(*conditions)
        .order_by(ThrottlingEvent.at.desc(), ThrottlingEvent.call_id.desc())
        .limit(query.limit)
        .offset(query.offset)
    ).all()
    total = session.scalar(select(func.count(ThrottlingEvent.call_id)).where(*conditions))
    return rows, total or 0


def _conditions(query: EventQuery) -> list[ColumnElement[bool]]:
    wanted = {
        ThrottlingEvent.tenant_id: query.tenant,
        ThrottlingEvent.app_id: query.app,
        ThrottlingEvent.user_id: query.user,
        ThrottlingEvent.reason: query.reason,
    }
    conditions: list[ColumnElement[bool]] = [
        column == value for column, value in wanted.items() if value is not None
    ]
    if query.since is not None:
        conditions.append(ThrottlingEvent.at >= query.since)
    return conditions
