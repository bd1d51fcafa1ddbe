"""What tenants are told of, and in which words; an event's id follows from what happened.

The same record of the journal gives the same id at every time, so that reading it again tells nobody
twice. Payloads have the shape that the Standard Webhooks specification suggests: type, timestamp, data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fairserve.platform.background.webhooks.event_types import TEST
from fairserve.platform.control.record import CallRecord, InteractionRecord
from fairserve.platform.db.base import NAME_CHARS, new_id
from fairserve.platform.db.ledger import WIDE_ID_CHARS
from fairserve.platform.db.upsert import fitting_text

MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``at``: when it happened, ``origin``: when the run or call of it began; UTC epoch
    seconds. ``user``: whom the data names, empty for nobody.
    """

    id: str
    tenant: str
    type: str
    user: str
    at: float
    origin: float
    data: Mapping[str, Any]

    def payload(self) -> dict[str, Any]:
        """What is sent."""
        return {"type": self.type, "timestamp": time_text(self.at), "data": dict(self.data)}


def event_id(tenant: str, event_type: str, *key: str | float) -> str:
    """The id of what happened, by its natural key."""
    text = json.dumps([tenant, event_type, *key])
    return f"evt_{hashlib.sha256(text.encode()).hexdigest()[:40]}"


def finished(original: InteractionRecord, told: InteractionRecord) -> Event:
    """A run has ended. ``told`` is what may be known of it: the original, or its user's pseudonym in it.

    A run that goes on after its end is told again when it ends again.
    """
    key = (original.app, _run(original.interaction_id), original.ended_at)
    return Event(
        id=event_id(original.tenant, "interaction.finished", *key),
        tenant=told.tenant,
        type="interaction.finished",
        user=_user(told.user),
        at=told.ended_at,
        origin=told.opened_at,
        data={
            "interaction_id": _run(told.interaction_id),
            "app_id": told.app,
            "user": _user(told.user),
            "state": told.state,
            "calls": told.calls,
            "tokens": told.tokens,
            "wasted_tokens": told.wasted_tokens,
            "waste_cause": told.waste_cause or None,
            "opened_at": time_text(told.opened_at),
            "ended_at": time_text(told.ended_at),
        },
    )


def throttled_key(call: CallRecord) -> tuple[str, str, float]:
    """Refusals with the same app, reason and minute are one event."""
    return call.app, call.refusal_reason, float(call.accepted_at // MINUTE_S * MINUTE_S)


def throttled(told: CallRecord) -> Event:
    """Calls were refused; ``told`` is the first of its minute."""
    app, reason, minute = throttled_key(told)
    return Event(
        id=event_id(told.tenant, "calls.throttled", app, reason, minute),
        tenant=told.tenant,
        type="calls.throttled",
        user=_user(told.user),
        at=told.accepted_at,
        origin=told.accepted_at,
        data={
            "app_id": app,
            "reason": reason,
            "minute": time_text(minute),
            "user": _user(told.user),
            "interaction_id": _run(told.interaction_id),
            "scope": told.refusal_scope,
            "limit": told.refusal_limit,
            "count": told.refusal_count,
            "window_s": told.refusal_window_s,
            "retry_after_s": told.refusal_retry_after_s,
            "mid_run": told.mid_run,
        },
    )


def test_event(tenant: str, endpoint_id: str, now: datetime) -> Event:
    """Something to send, to see that it arrives."""
    at = now.timestamp()
    return Event(new_id("evt"), tenant, TEST, "", at, at, {"webhook_id": endpoint_id})


def anonymous_data(
    data: Mapping[str, Any], pseudonym: str, run: Callable[[str, str], str]
) -> dict[str, Any]:
    """The data of an event about a user who was erased; ``run`` gives what stands for a run, by its app
    and id.
    """
    found = {**data, "user": pseudonym}
    if data.get("interaction_id"):
        found["interaction_id"] = run(data["app_id"], data["interaction_id"])
    return found


def time_text(epoch_s: float) -> str:
    """A moment as payloads write it: RFC 3339 in UTC."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")


def _user(user: str) -> str:
    return fitting_text(user, NAME_CHARS)


def _run(run_id: str) -> str:
    return fitting_text(run_id, WIDE_ID_CHARS)
