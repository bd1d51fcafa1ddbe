"""Transactional outbox: webhook events are written in the transaction of the ledger's rows.

An event exists if and only if its rows do. A replay of the journal produces the same events, which are
not written again. There are no events for runs and calls that ended before the endpoint was set, or so
long ago that their event may have been deleted. Cost of a batch without tenants with an endpoint: one
query.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from fairserve.platform.background.settings import BackgroundSettings
from fairserve.platform.background.webhooks.budgets import BUDGET_EVENTS, BudgetWatch
from fairserve.platform.background.webhooks.event_types import TEST
from fairserve.platform.background.webhooks.events import Event, finished, throttled, throttled_key
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.db.base import utc_now, utc_time
from fairserve.platform.db.causes import may_be_values
from fairserve.platform.db.rows import changed, count, table_of
from fairserve.platform.db.upsert import insert_into
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEndpoint, WebhookEvent

logger = logging.getLogger(__name__)

KEPT = timedelta(days=7)
"""Time for which delivered and dead deliveries, and their events, are kept."""
MAX_PENDING = 10_000
"""Maximum pending deliveries of one endpoint, above which the oldest become dead."""
OVERFLOW = f"more than {MAX_PENDING} deliveries were pending"
_ROWS = 500

Endpoints = Mapping[str, Sequence[WebhookEndpoint]]
"""Enabled endpoints by tenant."""


class Outbox:
    """Writer of events. Belongs to the ledger's thread."""

    def __init__(self, settings: BackgroundSettings, currency: str) -> None:
        self.settings = settings
        """Settings in force; replaced when they are reloaded."""
        self._budgets = BudgetWatch(currency)

    def record(
        self,
        session: Session,
        calls: Sequence[tuple[CallRecord, CallRecord]],
        runs: Sequence[tuple[InteractionRecord, InteractionRecord]],
    ) -> None:
        """Write the events of the records of this transaction. The caller commits.

        Each record is a pair: the journal's, and the published one, which differ for an erased user.
        """
        tenants = {call.tenant for call, _ in calls} | {run.tenant for run, _ in runs}
        endpoints = enabled_endpoints(session, tenants)
        if not endpoints:
            return
        now = utc_now()
        try:
            # An event that cannot be written must not affect the ledger's rows.
            with session.begin_nested():
                write(session, self._events(session, endpoints, calls, runs, now), endpoints, now)
        except Exception as error:
            if not may_be_values(error):
                raise
            logger.error("cannot write webhook events, they are lost: %s", type(error).__name__)

    def _events(
        self,
        session: Session,
        endpoints: Endpoints,
        calls: Sequence[tuple[CallRecord, CallRecord]],
        runs: Sequence[tuple[InteractionRecord, InteractionRecord]],
        now: datetime,
    ) -> list[Event]:
        wanted = {
            tenant: {name for endpoint in found for name in endpoint.since}
            for tenant, found in endpoints.items()
        }
        oldest = (now - KEPT).timestamp()
        relevant = [
            (original, each)
            for original, each in calls
            if each.tenant in wanted and each.ended_at >= oldest
        ]
        events = [
            finished(original, each)
            for original, each in runs
            if "interaction.finished" in wanted.get(each.tenant, ()) and each.ended_at >= oldest
        ]
        refused = (
            each
            for _, each in relevant
            if each.outcome == "refused" and "calls.throttled" in wanted[each.tenant]
        )
        events += _throttled(refused)
        spending = [
            pair for pair in relevant if not BUDGET_EVENTS.isdisjoint(wanted[pair[1].tenant])
        ]
        if spending:
            events += self._budgets.reached(
                session,
                [each for _, each in spending],
                {each.call_id for original, each in spending if original.user != each.user},
                wanted,
                now.timestamp(),
            )
        return events


def write(session: Session, events: Sequence[Event], endpoints: Endpoints, now: datetime) -> None:
    """Write new events with an endpoint's subscription, and their deliveries, which are due at once.

    The caller has locked the endpoints or is the only writer, and commits.
    """
    takers = {
        event.id: [
            endpoint for endpoint in endpoints.get(event.tenant, ()) if _wants(endpoint, event)
        ]
        for event in events
    }
    # In a fixed order, so that writers cannot deadlock.
    rows = [
        {
            "id": event.id,
            "tenant_id": event.tenant,
            "type": event.type,
            "user_id": event.user,
            "origin_at": utc_time(event.origin),
            "payload": event.payload(),
            "created_at": now,
        }
        for event in sorted(events, key=lambda event: event.id)
        if takers[event.id]
    ]
    new: list[str] = []
    for start in range(0, len(rows), _ROWS):
        new += _insert_new(session, rows[start : start + _ROWS])
    deliveries = [
        WebhookDelivery(
            endpoint_id=endpoint.id,
            event_id=event,
            state="pending",
            attempts=0,
            next_attempt_at=now,
            last_error="",
            created_at=now,
        )
        for event in new
        for endpoint in takers[event]
    ]
    session.add_all(deliveries)
    session.flush()
    for endpoint_id in sorted({delivery.endpoint_id for delivery in deliveries}):
        bound_pending(session, endpoint_id, now)


def bound_pending(session: Session, endpoint_id: str, now: datetime) -> None:
    """Mark the oldest pending deliveries of an endpoint above ``MAX_PENDING`` as dead."""
    pending = (WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state == "pending")
    number = count(session, select(WebhookDelivery).where(*pending))
    if number <= MAX_PENDING:
        return
    oldest = (
        select(WebhookDelivery.event_id)
        .where(*pending)
        .order_by(WebhookDelivery.created_at, WebhookDelivery.event_id)
        .limit(number - MAX_PENDING)
    )
    chosen = WebhookDelivery.event_id.in_(oldest.scalar_subquery())
    dead = {"state": "dead", "last_error": OVERFLOW, "settled_at": now}
    changed(session, update(WebhookDelivery).where(*pending, chosen).values(dead))


def enabled_endpoints(
    session: Session, tenants: Collection[str]
) -> dict[str, list[WebhookEndpoint]]:
    """Return the enabled endpoints of tenants, locked against deletion."""
    found: dict[str, list[WebhookEndpoint]] = {}
    statement = (
        select(WebhookEndpoint)
        .where(WebhookEndpoint.tenant_id.in_(tenants), WebhookEndpoint.enabled.is_(True))
        .order_by(WebhookEndpoint.id)
        .with_for_update(read=True, key_share=True)
    )
    for endpoint in session.scalars(statement):
        found.setdefault(endpoint.tenant_id, []).append(endpoint)
    return found


def _throttled(refused: Iterable[CallRecord]) -> list[Event]:
    """Return one event per tenant, app, reason and minute, from the first rejection."""
    first: dict[tuple[Any, ...], CallRecord] = {}
    for call in refused:
        key = (call.tenant, *throttled_key(call))
        if key not in first or call.accepted_at < first[key].accepted_at:
            first[key] = call
    return [throttled(call) for call in first.values()]


def _wants(endpoint: WebhookEndpoint, event: Event) -> bool:
    if event.type == TEST:
        return True
    since = endpoint.since.get(event.type)
    return since is not None and event.at >= since


def _insert_new(session: Session, rows: Sequence[dict[str, Any]]) -> Sequence[str]:
    """Insert events; return the ids of new ones."""
    table = table_of(WebhookEvent)
    statement = insert_into(table, session.get_bind().dialect.name).values(list(rows))
    statement = statement.on_conflict_do_nothing(index_elements=["id"])
    return session.scalars(statement.returning(table.c.id)).all()
