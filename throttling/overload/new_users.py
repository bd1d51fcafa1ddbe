"""Limit on the new users of an app, since invented users never reach a limit per user.

A user is new to an app until one of its calls is admitted there, and again after a day without a
call. At most ``limit`` users become known within any 60 s. Under overload a call of a further new
user is rejected; otherwise it is admitted, and the user remains new. So an app that invents users gets
``limit`` of them a minute, and known users are not affected. Worked timeline, limit 2: users a, b
and c call at 0, 10 and 20 s. Under overload c is rejected with a retry at 60 s, when the slot of a
is free; a and b are known from then on.

At most ``MAX_USERS`` are remembered; beyond that, the app with the most users, of the tenant with the
most, forgets the one whose last call is the oldest. So more apps gain a tenant nothing. Cost: O(log
tenants) per call, amortised.

Weakness: known users are lost in a restart, so under overload an app's users are then readmitted at
``limit`` a minute. An app that invents users for t minutes has t times ``limit`` of them.
"""

from __future__ import annotations

from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.throttling.overload.window import SlidingLog

MAX_USERS = 200_000
RETENTION_S = 86_400.0
"""Seconds without a call after which a user is new again."""


class NewUsers:
    """The known users of each app. Times are monotonic seconds and must not decrease."""

    def __init__(self) -> None:
        self._known: SharedTable[tuple[str, str], float] = SharedTable(MAX_USERS)
        """Time of the last call of each user of an app, the oldest first."""
        self._places = SlidingLog()
        """Times at which users became known, by app."""

    def __len__(self) -> int:
        """Return the number of known users."""
        return len(self._known)

    @property
    def window_s(self) -> float:
        """Return the length of the window in seconds."""
        return self._places.window_s

    def is_new(self, app: str, user: str, now_s: float) -> bool:
        """Return whether the user has no recent call to the app. Changes nothing."""
        last_s = self._known.get((app, user))
        return last_s is None or now_s - last_s >= RETENTION_S

    def count(self, app: str, now_s: float) -> int:
        """Return the number of users that became known to the app within the window."""
        return self._places.count(app, now_s)

    def free_after_s(self, app: str, limit: int, now_s: float) -> float:
        """Return the seconds until one more user can become known."""
        return self._places.free_after_s(app, limit, now_s, record_now=False)

    def called(
        self, tenant: str, app: str, user: str, limit: int, now_s: float, *, admitted: bool
    ) -> None:
        """Record a call; a new user becomes known if it was admitted and the limit has a free slot."""
        if self.is_new(app, user, now_s):
            if not admitted or self.count(app, now_s) >= limit:
                return
            self._places.record(app, limit, now_s)
        self._remember((tenant, app), user, now_s)

    def _remember(self, owner: tuple[str, str], user: str, last_s: float) -> None:
        self._known.put(owner, (owner[1], user), last_s, last_s + RETENTION_S)

    def forget_idle(self, now_s: float) -> None:
        """Drop a share of the users without a call for ``RETENTION_S``, the oldest first."""
        self._places.forget_idle(now_s)
        self._known.expire(now_s)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "places": self._places.snapshot(now_s),
            "known": [
                [*owner, user, age_of(last_s, now_s)]
                for owner, (_, user), _, last_s in self._known.items()
            ],
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._places.restore(state["places"], now_s)
        self._known = SharedTable(MAX_USERS)
        for tenant, app, user, age in state["known"]:
            self._remember((tenant, app), user, time_of(age, now_s))
