"""Limit on the new users of an app, since invented users never reach a limit per user.

A user is new to an app until one of its calls is admitted there, and again after a day without a
call. At most ``limit`` users become known within any 60 s. Under overload a call of a further new
user is rejected; otherwise it is admitted, and the user remains new. So an app that invents users gets
``limit`` of them a minute, and known users are not affected. Worked timeline, limit 2: users a, b
and c call at 0, 10 and 20 s. Under overload c is rejected with a retry at 60 s, when the slot of a
is free; a and b are known from then on.

At most ``MAX_USERS`` are remembered; beyond that, the app with the most users forgets those with
the oldest last calls. Cost: O(1) amortised per call; a share of the apps a tick.

Weakness: known users are lost in a restart, so under overload an app's users are then readmitted at
``limit`` a minute. An app that invents users for t minutes has t times ``limit`` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.tracking.shared_table import tick_share
from fairserve.throttling.overload.window import SlidingLog

MAX_USERS = 200_000
RETENTION_S = 86_400.0
"""Seconds without a call after which a user is new again."""
_ROOM = 1_000
"""Number of users forgotten at once when ``MAX_USERS`` is exceeded."""


class NewUsers:
    """The known users of each app. Times are monotonic seconds and must not decrease."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()
        """Time of each user's last call, by app, oldest first. The app that a tick visited last is the
        last one."""
        self._places = SlidingLog()
        """Times at which users became known, by app."""
        self._users = 0

    def __len__(self) -> int:
        """Return the number of known users."""
        return self._users

    @property
    def window_s(self) -> float:
        """Return the length of the window in seconds."""
        return self._places.window_s

    def is_new(self, app: str, user: str, now_s: float) -> bool:
        """Return whether the user has no recent call to the app. Changes nothing."""
        users = self._known.get(app)
        last_s = None if users is None else users.get(user)
        return last_s is None or now_s - last_s >= RETENTION_S

    def count(self, app: str, now_s: float) -> int:
        """Return the number of users that became known to the app within the window."""
        return self._places.count(app, now_s)

    def free_after_s(self, app: str, limit: int, now_s: float) -> float:
        """Return the seconds until one more user can become known."""
        return self._places.free_after_s(app, limit, now_s, record_now=False)

    def called(self, app: str, user: str, limit: int, now_s: float, *, admitted: bool) -> None:
        """Record a call; a new user becomes known if it was admitted and the limit has a free slot."""
        if not self.is_new(app, user, now_s):
            users = self._known[app]
            users[user] = now_s
            users.move_to_end(user)
            return
        if not admitted or self.count(app, now_s) >= limit:
            return
        self._places.record(app, limit, now_s)
        users = self._known.setdefault(app, OrderedDict())
        if user not in users:
            self._users += 1
        users[user] = now_s
        users.move_to_end(user)
        if self._users > MAX_USERS:
            largest = max(self._known, key=lambda each: len(self._known[each]))
            self._forget(largest, min(_ROOM, len(self._known[largest])))

    def forget_idle(self, now_s: float) -> None:
        """Drop users of a share of the apps without a call for ``RETENTION_S``, the oldest first."""
        self._places.forget_idle(now_s)
        for _ in range(tick_share(len(self._known))):
            app, users = next(iter(self._known.items()))
            self._known.move_to_end(app)
            for _ in range(min(len(users), _ROOM)):
                if now_s - next(iter(users.values())) < RETENTION_S:
                    break
                self._forget(app, 1)

    def _forget(self, app: str, count: int) -> None:
        users = self._known[app]
        for _ in range(count):
            users.popitem(last=False)
        self._users -= count
        if not users:
            del self._known[app]

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            "places": self._places.snapshot(now_s),
            "known": {
                app: [[user, age_of(last_s, now_s)] for user, last_s in users.items()]
                for app, users in self._known.items()
            },
        }

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._places.restore(state["places"], now_s)
        self._known = OrderedDict(
            (app, OrderedDict((user, time_of(age, now_s)) for user, age in users))
            for app, users in state["known"].items()
        )
        self._users = sum(map(len, self._known.values()))
