"""Events for tenants, and their payloads; an event's id is derived from its cause.

A record of the journal always has the same event id, so a replay sends nothing twice. Payloads have the
format of the Standard Webhooks specification: type, timestamp, data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fairserve.platform.background.webhooks.event_types import TEST
from fairserve.platform.control.messages import CallRecord, InteractionRecord
from fairserve.platform.db.base import NAME_CHARS, new_id, utc_time
from fairserve.platform.db.ledger import WIDE_ID_CHARS
from fairserve.platform.db.upsert import fitting_text

MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    ``at`` is its time, ``origin`` the start of its run or call, in UTC epoch seconds. ``user`` is the
    user in the data, or empty.
    """

    id: str
    tenant: str
    type: str
    user: str
    at: float
    origin: float
    data: Mapping[str, Any]

    def payload(self) -> dict[str, Any]:
        """Return the body to send."""
        return {"type": self.type, "timestamp": time_text(self.at), "data": dict(self.data)}


def event_id(tenant: str, event_type: str, *key: str | float) -> str:
    """Return the id of an event with this natural key."""
    text = json.dumps([tenant, event_type, *key])
    return f"evt_{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def finished(original: InteractionRecord, record: InteractionRecord) -> Event:
    """Return the event of an ended run. ``record`` is the original, or a copy under a pseudonym.

    A run that continues after its end gets another event at its next end.
    """
    key = (original.app, _run(original.interaction_id), original.ended_at)
    return Event(
        id=event_id(original.tenant, "interaction.finished", *key),
        tenant=record.tenant,
        type="interaction.finished",
        user=_user(record.user),
        at=record.ended_at,
        origin=record.opened_at,
        data={
            "interaction_id": _run(record.interaction_id),
            "app_id": record.app,
            "user": _user(record.user),
            "state": record.state,
            "calls": record.calls,
            "tokens": record.tokens,
            "wasted_tokens": record.wasted_tokens,
            "waste_cause": record.waste_cause or None,
            "opened_at": time_text(record.opened_at),
            "ended_at": time_text(record.ended_at),
        },
    )


def throttled_key(call: CallRecord) -> tuple[str, str, float]:
    """Return the key of an event: rejections with the same app, reason and minute share an event."""
    return call.app, call.refusal_reason, float(call.accepted_at // MINUTE_S * MINUTE_S)


def throttled(record: CallRecord) -> Event:
    """Return the event of rejected calls; ``record`` is the first of its minute."""
    app, reason, minute = throttled_key(record)
    return Event(
        id=event_id(record.tenant, "calls.throttled", app, reason, minute),
        tenant=record.tenant,
        type="calls.throttled",
        user=_user(record.user),
        at=record.accepted_at,
        origin=record.accepted_at,
        data={
            "app_id": app,
            "reason": reason,
            "minute": time_text(minute),
            "user": _user(record.user),
            "interaction_id": _run(record.interaction_id),
            "scope": record.refusal_scope,
            "limit": record.refusal_limit,
            "count": record.refusal_count,
            "window_s": record.refusal_window_s,
            "retry_after_s": record.refusal_retry_after_s,
            "mid_run": record.mid_run,
        },
    )


def test_event(tenant: str, endpoint_id: str, now: datetime) -> Event:
    """Return an event for testing an endpoint."""
    at = now.timestamp()
    return Event(new_id("evt"), tenant, TEST, "", at, at, {"webhook_id": endpoint_id})


def time_text(epoch_s: float) -> str:
    """Return a time in the format of payloads, RFC 3339 in UTC."""
    return utc_time(epoch_s).isoformat().replace("+00:00", "Z")


def _user(user: str) -> str:
    return fitting_text(user, NAME_CHARS)


def _run(run_id: str) -> str:
    return fitting_text(run_id, WIDE_ID_CHARS)
