"""The protocol of a throttling policy: it decides about new calls, and remembers arrivals.

A rejection is a value, :class:`Decision`, never an exception. ``check`` consumes nothing; ``commit``
records that the decision was carried out. No policy reads a clock: ``now_s`` is monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

Scope = Literal["user", "app", "tenant"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the calls per minute of one user, and of an app as a whole; ``None`` is no limit."""

    user_rpm: int | None = None
    app_rpm: int | None = None
    new_users: int | None = None
    """Users per minute that the app has not shown before."""

    def __post_init__(self) -> None:
        for name in ("user_rpm", "app_rpm", "new_users"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1_000_000:
                raise ValueError(f"{name} is {value}; allowed: 1 to 1000000, or null")


class Arrival(NamedTuple):
    """Facts about an arrived call that a policy may use."""

    user: str
    """Identity of the end user: tenant and user id, across the tenant's apps."""
    app: str
    limits: Limits
    overloaded: bool
    """True while the workers that may serve the call are overloaded."""
    under_way: bool
    """True if its interaction is active and has not lost its immunity."""

    @property
    def user_key(self) -> str:
        """Return the identity of the end user across the tenant's apps, as the key of a count."""
        return f"user:{self.user}"

    @property
    def app_user_key(self) -> str:
        """Return the identity of the end user within this app, as the key of a count.

        An app's limit per user is counted under this key, so that one app's log neither truncates
        nor fills another's.
        """
        return f"user:{self.app}\0{self.user}"

    @property
    def app_key(self) -> str:
        """Return the identity of the app, as the key of a count."""
        return f"app:{self.app}"


class Budget(NamedTuple):
    """A budget that rejected a call, and the largest cost of the call; nanounits."""

    limit: int
    spent: int
    """Cost of the calls that ended in the present period."""
    held: int
    """Largest cost of the calls in progress."""
    cost: int
    """Largest cost of the rejected call."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a policy, with everything that a rejected caller gets to see."""

    admitted: bool
    reason: str = ""
    """Stable code of the rejection, for example ``overloaded_user_limit``."""
    scope: Scope | None = None
    limit: int | None = None
    window_s: float | None = None
    count: int | None = None
    """Arrivals counted in the window, this one included."""
    retry_after_s: float | None = None
    """Seconds after which the same call would be admitted if no one else used the same limit."""
    certain: bool = False
    """True if only this user uses the limit: after the wait the call is certain to be admitted."""
    budget: Budget | None = None
    """Set on a rejection for money; ``limit`` and ``count`` are calls and tokens only."""


ADMITTED = Decision(admitted=True)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Present use of a limit."""

    limit: int
    used: int
    """Calls, or tokens, that count in the window, at most ``limit``."""
    reset_s: float
    """Seconds until all of the limit is free again."""
    scope: Scope = "user"
    """Scope of the limit."""

    @property
    def remaining(self) -> int:
        """Return the calls, or tokens, that are left."""
        return self.limit - self.used


class ThrottlingPolicy(Protocol):
    """A throttle: one instance serves all users and apps of a deployment."""

    def check(self, arrival: Arrival, now_s: float) -> Decision:
        """Decide, without remembering anything. Cost O(1) amortised."""
        ...

    def commit(self, arrival: Arrival, decision: Decision, now_s: float) -> None:
        """Remember the arrival and what was decided about it."""
        ...

    def use(self, arrival: Arrival, now_s: float) -> LimitUse | None:
        """Return the user's use of its limit; None if this policy sets none."""
        ...

    def forget_idle(self, now_s: float) -> None:
        """Drop the keys that no longer matter; called about once a second."""
        ...

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        ...

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        ...
