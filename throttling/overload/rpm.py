"""Requests per minute: the usual rate limit, independent of load and interactions.

A baseline (VTC 5.1 "RPM", FairServe 3.4). Default: a sliding log of *accepted* calls over 60 s,
with which VTC's Table 2 was measured; ``window="fixed"`` is the window described in its text.
Weakness, and the reason for this project: it interrupts runs and rejects calls while the cluster is
idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fairserve.throttling.base import ADMITTED, Arrival, Decision, LimitUse, Scope
from fairserve.throttling.overload.window import SlidingLog


@dataclass(frozen=True, slots=True)
class RpmOptions:
    """Options of RPM: ``limit`` calls per user and minute across the tenant's apps, or per app.

    With None the app's limits apply; ``user_rpm`` then counts a user's calls to this app only.
    """

    limit: int | None = None
    scope: Literal["user", "app", "both"] = "user"
    window: Literal["sliding", "fixed"] = "sliding"
    window_s: float = 60.0

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit is {self.limit}; allowed: 1 or more")
        if self.scope not in ("user", "app", "both"):
            raise ValueError(f"scope is {self.scope!r}; allowed: user, app, both")
        if self.window not in ("sliding", "fixed"):
            raise ValueError(f"window is {self.window!r}; allowed: sliding, fixed")
        if not self.window_s > 0:
            raise ValueError(f"window_s is {self.window_s}; allowed: over 0")


class RpmThrottle:
    """Rejects calls over the limit of the window."""

    def __init__(self, options: RpmOptions = RpmOptions()) -> None:
        self.options = options
        self._accepted = SlidingLog(options.window_s)

    def _keys(self, arrival: Arrival) -> list[tuple[Scope, str, int]]:
        limits, options = arrival.limits, self.options
        user_limit, user_key = options.limit, arrival.user_key
        app_limit = options.limit
        if options.limit is None:
            user_limit, user_key = limits.user_rpm, arrival.app_user_key
            app_limit = limits.app_rpm
        keys: list[tuple[Scope, str, int]] = []
        if options.scope in ("user", "both") and user_limit is not None:
            keys.append(("user", user_key, user_limit))
        if options.scope in ("app", "both") and app_limit is not None:
            keys.append(("app", arrival.app_key, app_limit))
        return keys

    def _windowed(self, key: str, now_s: float) -> str:
        """Return the key with the number of the fixed window, so that each window has its own key."""
        if self.options.window == "sliding":
            return key
        return f"{key}@{int(now_s // self.options.window_s)}"

    def check(self, arrival: Arrival, now_s: float) -> Decision:
        """Compare the accepted calls of the window, plus this one, with the limit."""
        window_s = self.options.window_s
        for scope, key, limit in self._keys(arrival):
            count = self._accepted.count(self._windowed(key, now_s), now_s) + 1
            if count > limit:
                if self.options.window == "sliding":
                    retry_s = self._accepted.free_after_s(key, limit, now_s, record_now=False)
                else:
                    retry_s = window_s - now_s % window_s
                return Decision(
                    admitted=False,
                    reason=f"rpm_{scope}_limit",
                    scope=scope,
                    limit=limit,
                    window_s=window_s,
                    count=count,
                    retry_after_s=retry_s,
                    certain=scope == "user",
                )
        return ADMITTED

    def commit(self, arrival: Arrival, decision: Decision, now_s: float) -> None:
        """Count the call if it was accepted."""
        if decision.admitted:
            for _, key, limit in self._keys(arrival):
                self._accepted.record(self._windowed(key, now_s), limit, now_s)

    def use(self, arrival: Arrival, now_s: float) -> LimitUse | None:
        """Return the accepted calls against the user's limit."""
        for scope, key, limit in self._keys(arrival):
            if scope == "user":
                return self._accepted.use(self._windowed(key, now_s), limit, now_s)
        return None

    def forget_idle(self, now_s: float) -> None:
        """Drop idle keys."""
        self._accepted.forget_idle(now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the ages of the accepted calls.

        The number of a fixed window does not survive a restart of the clock: its counts restart at 0.
        """
        return {"accepted": self._accepted.snapshot(now_s)}

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._accepted.restore(state["accepted"], now_s)
