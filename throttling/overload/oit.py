"""Overload and interaction-driven throttling (FairServe 4.2, Algorithm 1 lines 19-25).

    19     count the arrival for its user and for its app                    OitThrottle.commit
    20     if the KV cache is overloaded and the call is outside an          OitThrottle.check
           interaction in progress:
    21-22    block if the user's count is over the user's limit
    23-24    else block if the app's count is over the app's limit
    25     else queue the call                                               the dispatcher

Rejected arrivals count, too. Departures: a user's calls are counted and limited in each app apart
(``Limits.user_rpm``), so that one app's calls do not use up another's; the paper's limit across
apps is the option ``user_limit``. And the immunity of an interaction is bounded
(``Arrival.under_way``, set from the tracker); otherwise a client could put all its calls into one
never-ending run. Addition, off by default (``Limits.new_users``): under overload an app can start
runs of at most that many new users a minute (:mod:`fairserve.throttling.overload.new_users`),
because invented users never reach a limit per user.

Weakness: limits count calls, not tokens; and an honest new user of an app whose other users flood
it is blocked by the app's limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairserve.throttling.base import ADMITTED, Arrival, Decision, LimitUse, Scope
from fairserve.throttling.overload.new_users import NewUsers
from fairserve.throttling.overload.window import SlidingLog


@dataclass(frozen=True, slots=True)
class OitOptions:
    """Options of OIT: ``window_s`` is the length of the sliding window in seconds."""

    window_s: float = 60.0
    user_limit: int | None = None
    """Calls of a user in all apps of its tenant within the window, beside each app's own limit per
    user; None (the default) sets no such limit. Algorithm 1 has only this one."""

    def __post_init__(self) -> None:
        if not self.window_s > 0:
            raise ValueError(f"window_s is {self.window_s}; allowed: over 0")
        if self.user_limit is not None and not 1 <= self.user_limit <= 1_000_000:
            raise ValueError(f"user_limit is {self.user_limit}; allowed: 1 to 1000000, or null")


class OitThrottle:
    """Rejects new runs of users and apps over their limits, under overload only."""

    def __init__(self, options: OitOptions = OitOptions()) -> None:
        self.options = options
        self._arrivals = SlidingLog(options.window_s)
        self._new_users = NewUsers()

    def commit(self, arrival: Arrival, decision: Decision, now_s: float) -> None:
        """Count the arrival (line 19); rejected arrivals count, too."""
        for _, key, limit in self._keys(arrival):
            self._arrivals.record(key, limit, now_s)
        limit_of_new = arrival.limits.new_users
        if limit_of_new is not None:
            self._new_users.called(
                arrival.tenant,
                arrival.app,
                arrival.user,
                limit_of_new,
                now_s,
                admitted=decision.admitted,
            )

    def check(self, arrival: Arrival, now_s: float) -> Decision:
        """Reject under overload only, and never a call of an active interaction (lines 20-24)."""
        if not arrival.overloaded or arrival.under_way:
            return ADMITTED
        keys = self._keys(arrival)
        over = [each for each in keys if self._arrivals.count(each[1], now_s) >= each[2]]
        if not over:
            return self._check_new_user(arrival, now_s)
        free_after_s = {
            key: self._arrivals.free_after_s(key, limit, now_s, record_now=True)
            for _, key, limit in keys
        }
        of_user = [each for each in over if each[0] == "user"]
        scope, key, limit = max(of_user or over, key=lambda each: free_after_s[each[1]])
        return Decision(
            admitted=False,
            reason=f"overloaded_{scope}_limit",
            scope=scope,
            limit=limit,
            window_s=self.options.window_s,
            count=self._arrivals.count_all(key, now_s) + 1,
            retry_after_s=max(arrival.expected_wait_s, *free_after_s.values()),
            certain=scope == "user",
        )

    def _keys(self, arrival: Arrival) -> list[tuple[Scope, str, int]]:
        """Return the counting keys with their limits: user before app, as in lines 21-24."""
        keys: list[tuple[Scope, str, int]] = []
        if arrival.limits.user_rpm is not None:
            keys.append(("user", arrival.app_user_key, arrival.limits.user_rpm))
        if self.options.user_limit is not None:
            keys.append(("user", arrival.user_key, self.options.user_limit))
        if arrival.limits.app_rpm is not None:
            keys.append(("app", arrival.app_key, arrival.limits.app_rpm))
        return keys

    def _check_new_user(self, arrival: Arrival, now_s: float) -> Decision:
        """Reject a call of a new user if the app's limit of new users is reached."""
        limit, app = arrival.limits.new_users, arrival.app
        if limit is None or not self._new_users.is_new(app, arrival.user, now_s):
            return ADMITTED
        count = self._new_users.count(app, now_s) + 1
        if count <= limit:
            return ADMITTED
        return Decision(
            admitted=False,
            reason="overloaded_new_users_limit",
            scope="app",
            limit=limit,
            window_s=self._new_users.window_s,
            count=count,
            retry_after_s=max(
                self._new_users.free_after_s(app, limit, now_s), arrival.expected_wait_s
            ),
        )

    def use(self, arrival: Arrival, now_s: float) -> LimitUse | None:
        """Return the use of the user's limit that has the least left; it binds under overload only."""
        uses = [
            self._arrivals.use(key, limit, now_s)
            for scope, key, limit in self._keys(arrival)
            if scope == "user"
        ]
        return min(uses, key=lambda use: use.remaining, default=None)

    def forget_idle(self, now_s: float) -> None:
        """Drop idle keys and users."""
        self._arrivals.forget_idle(now_s)
        self._new_users.forget_idle(now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the ages of the arrivals and of the known users' last calls."""
        return {
            "arrivals": self._arrivals.snapshot(now_s),
            "new_users": self._new_users.snapshot(now_s),
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._arrivals.restore(state["arrivals"], now_s)
        self._new_users.restore(state["new_users"], now_s)
