"""Look up the cause of an alarm: the limit that rejects calls, and the last change that touches it.

The limit is that of the latest rejection of the app for the same reason. The change is the latest one in
the audit log that could have caused the alarm, at most ``LOOKED_BACK`` before it: of the app, its tenant
or its user, of the throttling, or of the worker. It is given as a difference of its fields.

Cost: two queries by an index, at most ``MAX_ENTRIES`` entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from fairserve.platform.background.alarms.alarm import Alarm
from fairserve.platform.db.base import utc_time
from fairserve.platform.db.identity import ApiKey
from fairserve.platform.db.ledger import ThrottlingEvent
from fairserve.platform.db.operations import AuditEntry

LOOKED_BACK = timedelta(hours=24)
MAX_ENTRIES = 20
MAX_DIFFERENCES = 5
_CALLS = ("calls_rejected", "calls_waiting", "calls_failing", "over_share")
_LIMITS = (
    *("limits", "contract", "user_contract", "rpm"),
    *("blocked", "parameters", "system", "suspended"),
)
"""Beginnings of the names of fields that can cause rejections."""


def find_cause(session: Session, alarm: Alarm) -> dict[str, Any]:
    """Return what is known of an alarm's cause: ``limit`` and ``change``, each only if it is found."""
    found = {"limit": _limit(session, alarm), "change": _change(session, alarm)}
    return {name: value for name, value in found.items() if value is not None}


def _limit(session: Session, alarm: Alarm) -> dict[str, Any] | None:
    if alarm.key.kind != "calls_rejected":
        return None
    event = session.scalars(
        select(ThrottlingEvent)
        .where(
            ThrottlingEvent.tenant_id == alarm.key.tenant,
            ThrottlingEvent.app_id == alarm.key.app,
            ThrottlingEvent.reason == alarm.facts["reason"],
            ThrottlingEvent.at > utc_time(alarm.opened_at) - timedelta(minutes=2),
        )
        .order_by(ThrottlingEvent.at.desc())
        .limit(1)
    ).first()
    if event is None or event.limit_count is None:
        return None
    return {"scope": event.scope, "limit": event.limit_count, "window_s": event.window_s}


def _change(session: Session, alarm: Alarm) -> dict[str, Any] | None:
    key, at = alarm.key, utc_time(alarm.opened_at)
    touched = AuditEntry.target == key.subject
    if key.kind in _CALLS:
        targets = [each for each in (key.app, key.tenant, key.subject) if each]
        own = and_(AuditEntry.tenant_id == key.tenant, AuditEntry.target.in_(targets))
        touched = or_(own, AuditEntry.action == "throttling.change")
        if key.kind == "calls_rejected" and not key.subject:
            # A limit of one of its users may reject the calls of the app.
            users = and_(AuditEntry.tenant_id == key.tenant, AuditEntry.action.like("user.%"))
            touched = or_(touched, users)
    entries = session.execute(
        select(AuditEntry, ApiKey.name)
        .outerjoin(ApiKey, ApiKey.id == AuditEntry.actor_key_id)
        .where(touched, AuditEntry.at > at - LOOKED_BACK, AuditEntry.at <= at)
        .order_by(AuditEntry.at.desc(), AuditEntry.id.desc())
        .limit(MAX_ENTRIES)
    )
    for entry, name in entries:
        differences = differences_of(entry)
        if key.kind == "calls_rejected":
            differences = [each for each in differences if each["field"].startswith(_LIMITS)]
        elif entry.before is None:  # it created something
            differences = []
        if differences or key.kind not in _CALLS:
            return {
                "entry": entry.id,
                "at": entry.at.timestamp(),
                "actor": name or entry.actor,
                "operator": entry.actor_key_id is None
                or not _of_tenant(session, entry, key.tenant),
                "action": entry.action,
                # A user's id is not kept where its erasure would have to find it.
                "target": "" if entry.action.startswith("user.") else entry.target,
                "differences": differences[:MAX_DIFFERENCES],
            }
    return None


def _of_tenant(session: Session, entry: AuditEntry, tenant: str) -> bool:
    """Return whether a tenant's own key made a change."""
    key = session.get(ApiKey, entry.actor_key_id)
    return key is not None and key.tenant_id == tenant


def differences_of(entry: AuditEntry) -> list[dict[str, Any]]:
    """Return the fields that a change set: ``field``, ``before`` and ``after`` of each."""
    return list(_differences(entry.before or {}, entry.after or {}))


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the fields that differ, with their values before and after."""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            old, new = old or {}, new or {}
            if isinstance(old, Mapping) and isinstance(new, Mapping):
                yield from _differences(old, new, f"{prefix}{name}.")
                continue
        if old != new:
            yield {"field": f"{prefix}{name}", "before": old, "after": new}
