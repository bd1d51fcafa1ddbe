"""Shared entitlement of an app's new users: they are one client until they have a history.

Under ``tenant > user`` an app that invents users takes the share of its tenant's other apps: 900
invented users beside 26 real ones receive 900 of 926 parts. With ``newcomers="shared"`` the calls
of an app's users without a history belong to one client, a sibling of the users with one. A user
has a history once ``newcomer_slices`` H typical calls were charged to that client for its calls and
the app has a free slot. Then it is a separate client, lifted like any newcomer. Users whose
settings an operator changed have a history. No paper has this option; ``own`` is their behaviour.

Bound. An app that invents any number of users receives one user's share for them, and one more for
each history.

- Each history costs H of the charges to the newcomers' client, which has one user's share of the
  tenant up to the feeder's bound. The cost is the same whether histories are earned in turn or side
  by side.
- With n histories at the start, k more in a time T: ``1 + n + k <= (2 + n) exp(T / G)``, G =
  ``newcomer_growth_s``. The first slot is free G after the app's first newcomer, each later one
  ``G / (1 + histories)`` after the last one was taken, and slots do not accumulate. So k histories
  take at least ``G * sum(1 / (1 + n + j))``, j from 1 to k - 1, which is at least
  ``G log((1 + n + k) / (2 + n))``. This also holds without other waiting users, when service costs
  nothing.

Histories are kept by tenant and app, so one app's users do not pay for those of another, and an app
that uses the user names of another gains nothing. The newcomers of an app wait in one queue, in the
order of its calls. At most 200,000 users with a history, or progress towards one, are kept; beyond
that, the largest app of the largest tenant loses users first. A history ends after 30 days without
service. Cost: O(1) per call; O(tenants + apps of a tenant) once per 1,000 users over the limit.

Weakness: a new app of many real users is treated like one user in its first days. An app that pays
and waits ``G log(n)`` has n users.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from fairserve.interactions.ages import age_of, time_of
from fairserve.interactions.call import Call, ClientPath, client_id
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.system import SystemConfig

MAX_USERS = 200_000
"""Maximum users with a history, or progress towards one, over all tenants."""
RETENTION_S = 30 * 86_400.0
"""Seconds after the end of a user's last call at which its history ends."""
_ROOM = 1_000
"""Number of users forgotten at once when ``MAX_USERS`` is exceeded."""
_MARK = "\0newcomers of "
"""Prefix of the name of a shared client. A user with such a name never has a history."""


class _App:
    """Users of one app of one tenant, each in the order of their last call's end."""

    __slots__ = ("earned", "known", "place_s")

    def __init__(self, place_s: float) -> None:
        self.place_s = place_s
        """Time at which the next slot for a history is free."""
        self.known: OrderedDict[str, float] = OrderedDict()
        """End of the last call of each user with a history."""
        self.earned: OrderedDict[str, float] = OrderedDict()
        """Typical calls charged so far for each user without a history."""

    def __len__(self) -> int:
        return len(self.known) + len(self.earned)


class Newcomers:
    """Users with a history, and users on their way to one.

    ``slices`` is the cost of a history in typical calls, ``growth_s`` bounds the growth of an app's
    histories; both can be changed at any time.
    """

    def __init__(self, directory: Directory, slices: float, growth_s: float) -> None:
        self._directory = directory
        self.slices, self.growth_s = slices, growth_s
        self._tenants: dict[str, dict[str, _App]] = {}
        self._sizes: dict[str, int] = {}
        """Number of kept users by tenant."""
        self._users = 0

    def __len__(self) -> int:
        """Return the number of kept users."""
        return self._users

    def known(self, tenant: str, app: str, user: str, now_s: float) -> bool:
        """Return whether the user has a history with the app. Changes nothing."""
        found = self._app(tenant, app)
        last_s = None if found is None else found.known.get(user)
        return last_s is not None and now_s - last_s <= RETENTION_S

    def _app(self, tenant: str, app: str) -> _App | None:
        apps = self._tenants.get(tenant)
        return None if apps is None else apps.get(app)

    def client_of(self, call: Call, own: ClientPath, now_s: float) -> ClientPath:
        """Return the client that pays for the call: ``own``, or the newcomers of its app."""
        if self._directory.has_settings(call.tenant, call.user) or self.known(
            call.tenant, call.app, call.user, now_s
        ):
            return own
        return _common(call, own)

    def ended(self, call: Call, slices: float, now_s: float) -> None:
        """Record the end of a call and the charge to its client, in typical calls."""
        tenant, user = call.tenant, call.user
        app = self._app(tenant, call.app)
        if app is not None:
            while app.known and now_s - next(iter(app.known.values())) > RETENTION_S:
                app.known.popitem(last=False)
                self._count(tenant, -1)
            if user in app.known:
                app.known[user] = now_s
                app.known.move_to_end(user)
                return
        if slices <= 0 or user.startswith(_MARK) or call.client != _common(call, call.client):
            return
        if app is None:
            app = _App(now_s + self.growth_s)
            self._tenants.setdefault(tenant, {})[call.app] = app
        earned = app.earned.pop(user, None)
        if earned is None:
            self._count(tenant, 1)
        earned = (earned or 0.0) + slices
        if earned >= self.slices and now_s >= app.place_s:
            app.known[user] = now_s
            app.place_s = now_s + self.growth_s / (1 + len(app.known))
        else:
            app.earned[user] = earned
        if self._users > MAX_USERS:
            self._make_room()

    def _count(self, tenant: str, users: int) -> None:
        self._users += users
        self._sizes[tenant] = self._sizes.get(tenant, 0) + users

    def _make_room(self) -> None:
        """Forget users of the largest app of the largest tenant, those without a history first."""
        tenant = max(self._sizes, key=self._sizes.__getitem__)
        apps = self._tenants[tenant]
        name = max(apps, key=lambda each: len(apps[each]))
        app = apps[name]
        for _ in range(min(_ROOM, len(app))):
            (app.earned or app.known).popitem(last=False)
            self._count(tenant, -1)
        if not app:
            del apps[name]

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        return {
            tenant: {
                name: {
                    "place_age_s": age_of(app.place_s, now_s),
                    "known": [[user, age_of(last_s, now_s)] for user, last_s in app.known.items()],
                    "earned": list(app.earned.items()),
                }
                for name, app in apps.items()
            }
            for tenant, apps in self._tenants.items()
        }

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        self._tenants, self._sizes, self._users = {}, {}, 0
        for tenant, apps in state.items():
            self._tenants[tenant] = {}
            for name, plain in apps.items():
                app = self._tenants[tenant][name] = _App(time_of(plain["place_age_s"], now_s))
                app.known.update((user, time_of(age, now_s)) for user, age in plain["known"])
                app.earned.update((user, earned) for user, earned in plain["earned"])
                self._count(tenant, len(app))


def newcomers_of(system: SystemConfig, directory: Directory) -> Newcomers | None:
    """Return the newcomers of a system without histories; None if each user is its own client."""
    if system.newcomers == "own":
        return None
    return Newcomers(directory, system.newcomer_slices, system.newcomer_growth_s)


def _common(call: Call, own: ClientPath) -> ClientPath:
    """Return the client of the app's newcomers, at the user's level of ``own``."""
    name = _MARK + call.app
    return (*own[:-1], name) if len(own) > 1 else (client_id((call.tenant, name)),)
