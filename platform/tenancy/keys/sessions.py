"""Expiry of the console's sessions.

The console creates and checks sessions (:mod:`fairserve.platform.console.sessions`); their rows expire
after their longest time, a setting, or without use.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, or_
from sqlalchemy.orm import Session

from fairserve.platform.db.console import ConsoleSession
from fairserve.platform.db.rows import changed

IDLE = timedelta(minutes=60)
"""Time without a request or an open page after which a sign-in ends."""


def is_expired(now: datetime) -> ColumnElement[bool]:
    """Return the condition for sessions beyond their maximum or their idle time."""
    return or_(ConsoleSession.expires_at <= now, ConsoleSession.seen_at <= now - IDLE)


def delete_expired(session: Session, now: datetime) -> int:
    """Delete expired sessions; return their number. The caller commits."""
    return changed(session, delete(ConsoleSession).where(is_expired(now)))
