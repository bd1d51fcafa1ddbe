"""Query and body of ``/admin/alarms`` and ``/v1/alarms``, and the data of the events about alarms."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from fairserve.platform.background.alarms.alarm import Alarm, AlarmKind, AlarmState, Severity
from fairserve.platform.background.alarms.words import change_text, text_of
from fairserve.platform.db.base import utc_time
from fairserve.platform.db.schemas import ObjectId, TenantPaging


class AlarmQuery(TenantPaging):
    """Filter of the alarms; all given fields must match."""

    state: Literal["current", "resolved"] = "current"
    """``current``: open and acknowledged; ``resolved``: the history."""
    kind: AlarmKind | None = None


class AlarmLimitOut(BaseModel):
    """The limit that rejects calls."""

    scope: str | None
    limit: int
    window_s: float | None


class AlarmDifferenceOut(BaseModel):
    """A field that was changed."""

    field: str
    before: Any
    after: Any


class AlarmChangeOut(BaseModel):
    """The last change before an alarm that touches it."""

    entry: str | None
    """Id of its entry in the audit log, for operators; null if an older server found it."""
    text: str
    at: datetime
    actor: str
    action: str
    target: str
    differences: list[AlarmDifferenceOut]


class AffectedAppOut(BaseModel):
    """An app whose calls are rejected, wait or fail because of what the alarm is about."""

    tenant: ObjectId
    app: ObjectId


class AlarmOut(BaseModel):
    """An alarm. A tenant reads its own calls and users in it, and nothing of others."""

    id: str
    kind: AlarmKind
    severity: Severity
    state: AlarmState
    text: str
    tenant: str | None
    app: str | None
    user: str | None
    subject: str | None
    """Model, worker or job that it is about."""
    opened_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    resolved_at: datetime | None
    over: bool
    """True once its condition no longer holds: it is resolved if that lasts for a minute."""
    reason: str | None
    """Most frequent reason of the rejections."""
    limit: AlarmLimitOut | None
    change: AlarmChangeOut | None
    affected: list[AffectedAppOut]


def alarm_out(alarm: Alarm, tenant: str | None = None) -> AlarmOut:
    """Return the view of an alarm for a tenant, or for operators."""
    key, own = alarm.key, tenant is None or alarm.key.tenant == tenant
    of_user = key.kind == "over_share"
    change = alarm.cause.get("change") if own else None
    if change is not None and tenant is not None and change["action"] == "throttling.change":
        change = {**change, "differences": []}  # parameters of all tenants
    by = alarm.acknowledged_by or None
    return AlarmOut(
        id=alarm.alarm_id,
        kind=key.kind if own else "calls_waiting",
        severity=alarm.severity,
        state=alarm.state,
        text=text_of(alarm, tenant),
        tenant=key.tenant or None if own else tenant,
        app=key.app or None if own else None,
        user=key.subject if of_user and own else None,
        subject=key.subject or None if own and not of_user else None,
        opened_at=utc_time(alarm.opened_at),
        acknowledged_at=_time(alarm.acknowledged_at),
        acknowledged_by=by if tenant is None or by is None else "an operator",
        resolved_at=_time(alarm.resolved_at),
        over=alarm.over,
        reason=alarm.facts.get("reason") if key.kind == "calls_rejected" else None,
        limit=None if not own or "limit" not in alarm.cause else alarm.cause["limit"],
        change=None
        if change is None
        else AlarmChangeOut(
            entry=None if tenant is not None else change.get("entry"),
            text=change_text(change, alarm.opened_at, tenant),
            at=utc_time(change["at"]),
            actor="an operator" if tenant is not None and change["operator"] else change["actor"],
            action=change["action"],
            target=change["target"],
            differences=change["differences"],
        ),
        affected=[
            AffectedAppOut(tenant=owner, app=app)
            for owner, app in sorted(alarm.affected)
            if tenant is None or owner == tenant
        ],
    )


def _time(at: float | None) -> datetime | None:
    return None if at is None else utc_time(at)
