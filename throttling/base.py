"""Protocol of a throttling policy, which admits or rejects new calls and counts arrivals.

A rejection is a value, :class:`Decision`, never an exception. ``check`` changes nothing; ``commit``
records that the decision was carried out. No policy reads a clock: ``now_s`` is monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

Scope = Literal["user", "app", "tenant"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on calls per minute, of one user and of an app as a whole; None means no limit."""

    user_rpm: int | None = None
    app_rpm: int | None = None
    new_users: int | None = None
    """New users of the app per minute."""

    def __post_init__(self) -> None:
        for name in ("user_rpm", "app_rpm", "new_users"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1_000_000:
                raise ValueError(f"{name} is {value}; allowed: 1 to 1000000, or null")


class Arrival(NamedTuple):
    """Facts about an arrived call that a policy may use."""

    user: str
    """The end user across the tenant's apps: tenant and user id."""
    app: str
    limits: Limits
    overloaded: bool
    """True while the workers that may serve the call are overloaded."""
    under_way: bool
    """True if the interaction is active and immune to overload limits."""
    tenant: str
    expected_wait_s: float = 0.0
    """Expected wait of a call that is queued now, in seconds."""

    @property
    def user_key(self) -> str:
        """Return the counting key of the user across the tenant's apps."""
        return f"user:{self.user}"

    @property
    def app_user_key(self) -> str:
        """Return the counting key of the user within this app.

        An app's limit per user is counted under this key, so that calls to one app neither truncate
        nor fill the log of another.
        """
        return f"user:{self.app}\0{self.user}"

    @property
    def app_key(self) -> str:
        """Return the counting key of the app."""
        return f"app:{self.app}"


class Budget(NamedTuple):
    """State of a budget that rejected a call; all amounts in nanounits."""

    limit: int
    spent: int
    """Cost of the calls that ended in the current period."""
    held: int
    """Maximum cost of the calls in progress."""
    cost: int
    """Maximum cost of the rejected call."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's decision, with everything that is reported to a rejected caller."""

    admitted: bool
    reason: str = ""
    """Stable code of the rejection, for example ``overloaded_user_limit``."""
    scope: Scope | None = None
    limit: int | None = None
    window_s: float | None = None
    count: int | None = None
    """Arrivals counted in the window, this one included."""
    retry_after_s: float | None = None
    """Seconds after which the same call would be admitted if nobody else used the same limit; under
    overload at least the expected wait."""
    certain: bool = False
    """True if only this user uses the limit, so the call is certain to be admitted after the wait."""
    budget: Budget | None = None
    """The exceeded budget if it caused the rejection; ``limit`` and ``count`` are calls or tokens."""


ADMITTED = Decision(admitted=True)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Current use of a limit."""

    limit: int
    used: int
    """Calls or tokens counted in the window, at most ``limit``."""
    reset_s: float
    """Seconds until the whole limit is free again."""
    scope: Scope = "user"
    """Scope of the limit."""

    @property
    def remaining(self) -> int:
        """Return the calls or tokens that are left."""
        return self.limit - self.used


class ThrottlingPolicy(Protocol):
    """A throttling policy; one instance serves all users and apps of a deployment."""

    def check(self, arrival: Arrival, now_s: float) -> Decision:
        """Return the decision without changing any state. Cost: O(1) amortised."""
        ...

    def commit(self, arrival: Arrival, decision: Decision, now_s: float) -> None:
        """Record the arrival and the decision about it."""
        ...

    def use(self, arrival: Arrival, now_s: float) -> LimitUse | None:
        """Return the user's use of its limit; None if this policy sets none."""
        ...

    def forget_idle(self, now_s: float) -> None:
        """Drop some idle keys; called about once a second. Visits a share of the keys."""
        ...

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return the state as plain JSON values; ages, not times."""
        ...

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        ...
