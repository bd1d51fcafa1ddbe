"""Events of the last half hour: alarms that were resolved, and settings that people changed.

Read after each sample, beside the alarms, so that pages show it from memory. Cost: two queries by an
index, at most ``MAX_EVENTS`` rows each. Weakness: while the database is away nothing new is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from fairserve.platform.background.alarms.alarm import Alarm
from fairserve.platform.background.alarms.causes import MAX_DIFFERENCES, differences_of
from fairserve.platform.background.alarms.store import alarm_of
from fairserve.platform.background.alarms.words import action_text, differences_text
from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.operations import AuditEntry

SPAN = timedelta(minutes=30)
MAX_EVENTS = 50
_SETTINGS = ("alias", "app", "price", "tenant", "throttling", "user", "worker")
"""Beginnings of the actions that change how calls are served."""
_NAMELESS = ("price", "throttling", "user")
"""Those whose target has no name: a price, a version, and a user, whose id its erasure must find."""


class RecentChange(NamedTuple):
    """A change of a setting."""

    at: float
    """UTC epoch second."""
    tenant: str | None
    """Tenant that sees it; None: operators alone."""
    target: str
    """Tenant, app, worker or alias; empty for a target without a name."""
    text: str
    by: str
    by_tenant: bool
    """True if a key of the tenant made it."""


class Recent(NamedTuple):
    """Events of the last half hour, the latest first."""

    resolved: Sequence[Alarm] = ()
    changes: Sequence[RecentChange] = ()


def read_recent(session: Session, now: datetime) -> Recent:
    """Return what happened up to ``now``."""
    resolved = session.scalars(
        select(AlarmRow)
        .where(AlarmRow.resolved_at > now - SPAN)
        .order_by(AlarmRow.resolved_at.desc())
        .limit(MAX_EVENTS)
    )
    changes = session.execute(
        select(AuditEntry, ApiKey.name, ApiKey.tenant_id)
        .outerjoin(ApiKey, ApiKey.id == AuditEntry.actor_key_id)
        .where(
            AuditEntry.at > now - SPAN,
            AuditEntry.actor != "system",
            or_(*(AuditEntry.action.startswith(f"{each}.") for each in _SETTINGS)),
        )
        .order_by(AuditEntry.at.desc(), AuditEntry.id.desc())
        .limit(MAX_EVENTS)
    )
    return Recent(
        [alarm_of(row) for row in resolved],
        [_change(entry, name, owner) for entry, name, owner in changes],
    )


def _change(entry: AuditEntry, name: str | None, owner: str | None) -> RecentChange:
    kind = entry.action.partition(".")[0]
    nameless = kind in _NAMELESS
    differences = differences_of(entry)[:MAX_DIFFERENCES] if entry.before and entry.after else []
    text = differences_text(differences)
    return RecentChange(
        at=entry.at.timestamp(),
        tenant=entry.tenant_id,
        target="" if nameless else entry.target,
        text=(f"{kind}: {text}" if nameless else text) if text else action_text(entry.action),
        by=name or entry.actor,
        by_tenant=owner is not None,
    )
