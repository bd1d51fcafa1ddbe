"""Delete settled deliveries after their retention, and events without deliveries."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import and_, exists, or_
from sqlalchemy.orm import Session

from fairserve.platform.db.rows import delete_some
from fairserve.platform.db.webhooks import WebhookDelivery, WebhookEvent


def delete_old(session: Session, before: datetime, *, max_rows: int = 5_000) -> int:
    """Delete old deliveries and events, at most ``max_rows`` of each; return their number.

    Deletes deliveries settled before the time, unsent ones due before it (their endpoint is disabled),
    and events without deliveries. Call it again in a new transaction until it returns 0.
    """
    old = or_(
        and_(WebhookDelivery.state != "pending", WebhookDelivery.settled_at < before),
        and_(WebhookDelivery.state == "pending", WebhookDelivery.next_attempt_at < before),
    )
    unused = ~exists().where(WebhookDelivery.event_id == WebhookEvent.id)
    deleted = delete_some(session, WebhookDelivery, old, max_rows)
    old_event = and_(WebhookEvent.created_at < before, unused)
    return deleted + delete_some(session, WebhookEvent, old_event, max_rows)
