"""The limits of an app that hold under overload, with the default that follows from the others."""

from __future__ import annotations

from fairserve.platform.db.identity import AppLimits
from fairserve.throttling.base import Limits

DEFAULT_NEW_USERS = 30
"""New users per minute of an app that has a ``user_rpm`` and no ``app_rpm``.

A limit per user alone does not bound an app: invented users each stay below it. 30 a minute are 43,200
new people a day, more than honest apps have, and few beside a flood.
"""


def new_users_in_force(limits: AppLimits) -> int | None:
    """New users per minute that an app may show under overload; None is no limit."""
    if limits.new_users_per_minute is not None:
        return limits.new_users_per_minute
    bounded = limits.user_rpm is None or limits.app_rpm is not None
    return None if bounded else DEFAULT_NEW_USERS


def limits_in_force(limits: AppLimits) -> Limits:
    """Return the limits as the throttle takes them."""
    return Limits(limits.user_rpm, limits.app_rpm, new_users_in_force(limits))
