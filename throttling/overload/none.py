"""No throttling: every call is admitted (the baseline of the VTC and DLPM papers)."""

from __future__ import annotations

from typing import Any

from fairserve.throttling.base import ADMITTED, Arrival, Decision, LimitUse


class NoThrottle:
    """Admits every call and keeps no state."""

    def check(self, arrival: Arrival, now_s: float) -> Decision:
        """Admit the call."""
        return ADMITTED

    def commit(self, arrival: Arrival, decision: Decision, now_s: float) -> None:
        """Record nothing."""

    def use(self, arrival: Arrival, now_s: float) -> LimitUse | None:
        """Return None: there is no limit."""
        return None

    def forget_idle(self, now_s: float) -> None:
        """Do nothing: there is no state."""

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Do nothing: there is no state."""
