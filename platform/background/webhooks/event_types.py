"""Types of events for subscriptions of tenants."""

from __future__ import annotations

from typing import Literal, get_args

EventType = Literal[
    "interaction.finished",
    "budget.share",
    "budget.reached",
    "calls.throttled",
    "alarm.opened",
    "alarm.resolved",
]
TYPES: tuple[EventType, ...] = get_args(EventType)
TEST = "webhook.test"
"""Type of a test event, which is sent on request regardless of the subscription."""
