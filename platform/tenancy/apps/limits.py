"""An app's limits under overload, with the default that depends on the others."""

from __future__ import annotations

from fairserve.platform.db.identity import AppLimits
from fairserve.throttling.base import Limits

DEFAULT_NEW_USERS = 30
"""Default of new users per minute, for apps with a ``user_rpm`` and no ``app_rpm``.

A limit per user does not bound an app that invents users, each below the limit. 30 a minute are 43,200
new users a day: more than real apps have, and far fewer than a flood.
"""


def new_users_in_force(limits: AppLimits) -> int | None:
    """Return the new users per minute that an app may have under overload; None is no limit."""
    if limits.new_users_per_minute is not None:
        return limits.new_users_per_minute
    bounded = limits.user_rpm is None or limits.app_rpm is not None
    return None if bounded else DEFAULT_NEW_USERS


def limits_in_force(limits: AppLimits) -> Limits:
    """Return the limits as input of the throttle."""
    return Limits(limits.user_rpm, limits.app_rpm, new_users_in_force(limits))
