"""The names of what tenants can be told of."""

from __future__ import annotations

from typing import Literal, get_args

EventType = Literal["interaction.finished", "budget.reached", "calls.throttled"]
TYPES: tuple[EventType, ...] = get_args(EventType)
TEST = "webhook.test"
"""Sent when somebody asks for it, whatever an endpoint is told of."""
