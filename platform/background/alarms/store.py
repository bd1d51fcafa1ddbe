"""The alarms in the database: their last state, their history, and the events about them.

One process writes (:class:`~fairserve.platform.background.alarms.watch.AlarmWatch`). An acknowledgement
is written by the process that gets it, and read by the others. A tenant that sees an alarm gets an event
when it is opened or first affects the tenant, and one when it is resolved, in the transaction that
stores the alarm. One that was opened and resolved before it could be stored gets both.

Bounds: ``KEPT`` and ``MAX_RESOLVED`` for resolved alarms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from fairserve.platform.background.alarms.alarm import Alarm, AlarmKey
from fairserve.platform.background.alarms.causes import find_cause
from fairserve.platform.background.alarms.schemas import AlarmQuery, alarm_out
from fairserve.platform.background.webhooks.events import Event, event_id
from fairserve.platform.background.webhooks.outbox import enabled_endpoints, write
from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.alarms import AlarmRow
from fairserve.platform.db.base import utc_now, utc_time
from fairserve.platform.db.rows import changed, delete_some, read_page
from fairserve.platform.tenancy.auth import Principal

KEPT = timedelta(days=30)
"""Time for which resolved alarms are kept."""
MAX_RESOLVED = 20_000
"""Resolved alarms that are kept, of all tenants."""
CAUSE_S = 60.0
"""Seconds after the opening of an alarm in which the limit that rejects calls is looked for."""

Acknowledged = dict[str, tuple[str, float]]
"""The actor and the time of each acknowledgement, by alarm."""


def load_open(session: Session) -> list[Alarm]:
    """Return the alarms that are not resolved, the first opened first."""
    rows = session.scalars(
        select(AlarmRow)
        .where(AlarmRow.resolved_at.is_(None))
        .order_by(AlarmRow.opened_at, AlarmRow.id)
    )
    return [alarm_of(row) for row in rows]


def alarm_of(row: AlarmRow) -> Alarm:
    """Return the alarm of a row."""
    tenants = {row.tenant_id, *(tenant for tenant, _ in row.affected)} - {""}
    return Alarm(
        alarm_id=row.id,
        key=AlarmKey(row.kind, row.tenant_id, row.app_id, row.user_id or row.subject),  # type: ignore[arg-type]  # the column holds no other kind
        severity=row.severity,  # type: ignore[arg-type]  # likewise
        opened_at=row.opened_at.timestamp(),
        seen_at=(row.resolved_at or utc_now()).timestamp(),
        facts=row.facts,
        affected=frozenset((tenant, app) for tenant, app in row.affected),
        cause=row.cause,
        acknowledged_by=row.acknowledged_by,
        acknowledged_at=None if row.acknowledged_at is None else row.acknowledged_at.timestamp(),
        resolved_at=None if row.resolved_at is None else row.resolved_at.timestamp(),
        unsaved=False,
        notified=frozenset(tenants),
    )


def lacks_limit(alarm: Alarm) -> bool:
    """Return whether the limit that rejects calls is still looked for: its row is written later."""
    lacks = alarm.key.kind == "calls_rejected" and "limit" not in alarm.cause
    return lacks and alarm.seen_at - alarm.opened_at <= CAUSE_S


def save(session: Session, alarms: Collection[Alarm]) -> None:
    """Store the state of alarms, except for acknowledgements, and their events. The caller commits, and
    has notified their tenants then.

    Looks up the causes that are not known yet; changes ``cause`` of the alarms, and their user if it was
    erased.
    """
    events: list[Event] = []
    ids = [alarm.alarm_id for alarm in alarms]
    rows = {row.id: row for row in session.scalars(select(AlarmRow).where(AlarmRow.id.in_(ids)))}
    for alarm in alarms:
        row = rows.get(alarm.alarm_id)
        if row is None or lacks_limit(alarm):
            alarm.cause = find_cause(session, alarm)
        if row is None:
            user = alarm.key.subject if alarm.key.kind == "over_share" else ""
            row = AlarmRow(
                id=alarm.alarm_id,
                kind=alarm.key.kind,
                tenant_id=alarm.key.tenant,
                app_id=alarm.key.app,
                user_id=user,
                subject="" if user else alarm.key.subject,
                opened_at=utc_time(alarm.opened_at),
                acknowledged_by="",
            )
            session.add(row)
        elif row.user_id:  # it may have been erased since
            alarm.key = alarm.key._replace(subject=row.user_id)
        row.severity, row.facts, row.cause = alarm.severity, dict(alarm.facts), dict(alarm.cause)
        row.affected = sorted([tenant, app] for tenant, app in alarm.affected)
        row.resolved_at = None if alarm.resolved_at is None else utc_time(alarm.resolved_at)
        events += _events(alarm)
    session.flush()
    if events:
        endpoints = enabled_endpoints(session, {event.tenant for event in events})
        write(session, events, endpoints, utc_now())


def _events(alarm: Alarm) -> Iterator[Event]:
    """Yield the events of an alarm's last change, one of a kind for each tenant that sees it."""
    for tenant in sorted(alarm.tenants - alarm.notified):
        opened = replace(alarm, resolved_at=None)
        yield _event("alarm.opened", opened, tenant, alarm.seen_at)
    if alarm.resolved_at is not None:
        for tenant in sorted(alarm.tenants):
            yield _event("alarm.resolved", alarm, tenant, alarm.resolved_at)


def _event(kind: str, alarm: Alarm, tenant: str, at: float) -> Event:
    own = alarm.key.tenant == tenant and alarm.key.kind == "over_share"
    return Event(
        id=event_id(tenant, kind, alarm.alarm_id),
        tenant=tenant,
        type=kind,
        user=alarm.key.subject if own else "",
        at=at,
        origin=alarm.opened_at,
        data=alarm_out(alarm, tenant).model_dump(mode="json"),
    )


def acknowledged(session: Session, ids: Collection[str]) -> Acknowledged:
    """Return those of these alarms that are acknowledged."""
    rows = session.execute(
        select(AlarmRow.id, AlarmRow.acknowledged_by, AlarmRow.acknowledged_at).where(
            AlarmRow.id.in_(ids), AlarmRow.acknowledged_at.is_not(None)
        )
    )
    return {row[0]: (row[1], row[2].timestamp()) for row in rows if row[2] is not None}


def acknowledge(session: Session, principal: Principal, alarm_id: str) -> Alarm:
    """Acknowledge an open alarm, with an entry in the audit log. The caller commits.

    Raises NotFoundError for an unknown alarm, and ConflictError for one that is not open.
    """
    now = utc_now()
    is_open = (AlarmRow.acknowledged_at.is_(None), AlarmRow.resolved_at.is_(None))
    done = {"acknowledged_at": now, "acknowledged_by": principal.actor}
    number = changed(
        session, update(AlarmRow).where(AlarmRow.id == alarm_id, *is_open).values(done)
    )
    row = session.get(AlarmRow, alarm_id, populate_existing=True)
    if row is None:
        raise NotFoundError("there is no such alarm", param="alarm_id")
    alarm = alarm_of(row)
    if not number:
        raise ConflictError(f"the alarm is {alarm.state}", code=alarm.state)
    after = {"kind": row.kind, "opened_at": row.opened_at.isoformat()}
    tenant_id = row.tenant_id or None
    audit.record(session, principal, "alarm.acknowledge", row.id, tenant_id=tenant_id, after=after)
    return alarm


def past(session: Session, query: AlarmQuery, tenant: str | None) -> tuple[list[Alarm], int]:
    """Return a page of the resolved alarms, the latest opened first, and their number.

    Those of a tenant are about its own calls.
    """
    found = select(AlarmRow).where(AlarmRow.resolved_at.is_not(None))
    if tenant is not None:
        found = found.where(AlarmRow.tenant_id == tenant)
    if query.kind is not None:
        found = found.where(AlarmRow.kind == query.kind)
    newest = found.order_by(AlarmRow.opened_at.desc(), AlarmRow.id.desc())
    rows, total = read_page(session, newest, query)
    return [alarm_of(row) for row in rows], total


def delete_old(session: Session, now: datetime, *, max_rows: int = 1_000) -> int:
    """Delete resolved alarms after their retention, and those beyond ``MAX_RESOLVED``.

    Returns their number; call it again in a new transaction until it is 0.
    """
    before = now - KEPT
    oldest = session.scalar(
        select(AlarmRow.resolved_at)
        .where(AlarmRow.resolved_at.is_not(None))
        .order_by(AlarmRow.resolved_at.desc())
        .offset(MAX_RESOLVED)
        .limit(1)
    )
    if oldest is not None:
        before = max(before, oldest + timedelta(microseconds=1))
    return delete_some(session, AlarmRow, AlarmRow.resolved_at < before, max_rows)
