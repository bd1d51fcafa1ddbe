"""Expiry of the console's sessions.

The console creates and checks sessions (:mod:`fairserve.platform.console.sessions`); their rows expire
by the settings of this package, like the keys of their sign-ins.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, or_
from sqlalchemy.orm import Session

from fairserve.platform.db.console import ConsoleSession
from fairserve.platform.tenancy.settings import TenancySettings


def is_expired(settings: TenancySettings, now: datetime) -> ColumnElement[bool]:
    """Return the condition for sessions beyond their maximum or their idle time."""
    idle = timedelta(minutes=settings.console_idle_minutes)
    return or_(ConsoleSession.expires_at <= now, ConsoleSession.seen_at <= now - idle)


def delete_expired(session: Session, settings: TenancySettings, now: datetime) -> int:
    """Delete expired sessions; return their number. The caller commits."""
    result = session.execute(delete(ConsoleSession).where(is_expired(settings, now)))
    return int(getattr(result, "rowcount", 0))
