"""Delete settled deliveries after their retention, and events without deliveries."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import and_, delete, exists, or_, select, tuple_
from sqlalchemy.orm import Session

from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEvent

_KEYS = 500


def delete_old(session: Session, before: datetime, *, max_rows: int = 5_000) -> int:
    """Delete old deliveries and events, at most ``max_rows`` of each; return their number.

    Deletes deliveries settled before the time, unsent ones due before it (their endpoint is disabled),
    and events without deliveries. Call it again in a new transaction until it returns 0.
    """
    key = (WebhookDelivery.endpoint_id, WebhookDelivery.event_id)
    old = or_(
        and_(WebhookDelivery.state != "pending", WebhookDelivery.settled_at < before),
        and_(WebhookDelivery.state == "pending", WebhookDelivery.next_attempt_at < before),
    )
    deliveries = [tuple(row) for row in session.execute(select(*key).where(old).limit(max_rows))]
    for start in range(0, len(deliveries), _KEYS):
        part = deliveries[start : start + _KEYS]
        # The condition is repeated because a delivery may have been replayed since the read.
        session.execute(
            delete(WebhookDelivery).where(tuple_(*key).in_(part), old),
            execution_options={"synchronize_session": False},
        )
    unused = ~exists().where(WebhookDelivery.event_id == WebhookEvent.id)
    events = session.scalars(
        select(WebhookEvent.id).where(WebhookEvent.created_at < before, unused).limit(max_rows)
    ).all()
    for start in range(0, len(events), _KEYS):
        session.execute(
            delete(WebhookEvent).where(WebhookEvent.id.in_(events[start : start + _KEYS])),
            execution_options={"synchronize_session": False},
        )
    return len(deliveries) + len(events)
