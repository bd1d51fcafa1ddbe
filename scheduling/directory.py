"""What the core knows of apps and users: profiles, limits, weights. Changed only by events.

Apps that were never announced use the default profile and have no limits; only users whose settings
differ from the default are kept.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fairserve.interactions.profile import DEFAULT_PROFILE, AppProfile, StageProfile
from fairserve.scheduling.events import AppChanged, UserChanged
from fairserve.throttling.base import Arrival, Limits

NO_LIMITS = Limits()


class Directory:
    """Settings of apps and users. Look-ups are O(1)."""

    def __init__(self) -> None:
        self._apps: dict[str, tuple[AppProfile, Limits]] = {}
        self._users: dict[tuple[str, str], UserChanged] = {}

    def app_changed(self, event: AppChanged) -> None:
        """Set an app's profile and limits."""
        self._apps[event.app] = (event.profile, event.limits)

    def user_changed(self, event: UserChanged) -> None:
        """Set a user's own settings. Raises ValueError for a weight that is not positive."""
        if not 0 < event.weight < 1e6:
            raise ValueError(f"weight is {event.weight}; allowed: over 0, under 1e6")
        key = (event.tenant, event.user)
        if event.weight == 1.0 and event.rpm is None and not event.blocked:
            self._users.pop(key, None)
        else:
            self._users[key] = event

    def profile(self, app: str) -> AppProfile:
        """The app's token profile."""
        entry = self._apps.get(app)
        return DEFAULT_PROFILE if entry is None else entry[0]

    def limits(self, app: str, tenant: str, user: str) -> Limits:
        """The app's limits, with the user's own where they are set."""
        entry = self._apps.get(app)
        limits = NO_LIMITS if entry is None else entry[1]
        own = self._users.get((tenant, user))
        if own is None or own.rpm is None:
            return limits
        return Limits(user_rpm=own.rpm, app_rpm=limits.app_rpm)

    def arrival(self, owner: tuple[str, str, str], *, overloaded: bool, under_way: bool) -> Arrival:
        """What the throttle is told of a call; ``owner`` is its tenant, app and user."""
        tenant, app, user = owner
        return Arrival(
            user=f"{tenant}/{user}",
            app=app,
            limits=self.limits(app, tenant, user),
            overloaded=overloaded,
            under_way=under_way,
        )

    def weight(self, tenant: str, user: str) -> float:
        """1 / E_i: a user of weight 2 is entitled to twice the service."""
        own = self._users.get((tenant, user))
        return 1.0 if own is None else own.weight

    def blocked(self, tenant: str, user: str) -> bool:
        """Whether an operator blocked the user."""
        own = self._users.get((tenant, user))
        return own is not None and own.blocked

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values."""
        return {
            "apps": [
                [app, asdict(profile), asdict(limits)]
                for app, (profile, limits) in self._apps.items()
            ],
            "users": [asdict(user) for user in self._users.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        self._apps = {}
        for app, profile, limits in state["apps"]:
            stages = tuple(StageProfile(**stage) for stage in profile["stages"])
            self._apps[app] = (AppProfile(**{**profile, "stages": stages}), Limits(**limits))
        self._users = {}
        for plain in state["users"]:
            self.user_changed(UserChanged(**plain))
