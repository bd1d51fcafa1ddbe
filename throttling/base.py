"""What a throttling policy is: it decides about new calls, and remembers arrivals.

A refusal is a value, :class:`Decision`, never an exception. ``check`` consumes nothing; ``commit``
records that the decision was carried out. No policy reads a clock: ``now_s`` is monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

Scope = Literal["user", "app", "tenant"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Calls per minute that one user, and one app as a whole, may make; ``None`` is no limit."""

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
    """What a policy may know about a call that has arrived."""

    user: str
    """Identity of the end user: tenant and user id, across the tenant's apps."""
    app: str
    limits: Limits
    overloaded: bool
    """Whether the workers that may serve the call are overloaded."""
    under_way: bool
    """Whether its interaction is under way, and has not lost its immunity."""

    @property
    def user_key(self) -> str:
        """Identity of the end user across the tenant's apps, as the key of a count."""
        return f"user:{self.user}"

    @property
    def app_user_key(self) -> str:
        """Identity of the end user within this app, as the key of a count.

        An app's limit per user is counted under this key, so that one app's log neither truncates
        nor fills another's.
        """
        return f"user:{self.app}\0{self.user}"

    @property
    def app_key(self) -> str:
        """Identity of the app, as the key of a count."""
        return f"app:{self.app}"


class Budget(NamedTuple):
    """A budget that refused a call, and what the call might have cost; nanounits."""

    limit: int
    spent: int
    """By calls that have ended in the present period."""
    held: int
    """For calls under way, at most."""
    cost: int
    """Of the refused call, at most."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decided, with everything that a refused caller is told."""

    admitted: bool
    reason: str = ""
    """Stable code of the refusal, for example ``overloaded_user_limit``."""
    scope: Scope | None = None
    limit: int | None = None
    window_s: float | None = None
    count: int | None = None
    """Arrivals counted in the window, this one included."""
    retry_after_s: float | None = None
    """After this long the same call would be admitted, if nobody else used the same limit."""
    certain: bool = False
    """Whether only this user uses the limit: who waits so long, and sends nothing else, gets in."""
    budget: Budget | None = None
    """Of a refusal for money; ``limit`` and ``count`` are of calls and tokens only."""


ADMITTED = Decision(admitted=True)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """How much of a limit is used now."""

    limit: int
    used: int
    """Calls, or tokens, that count in the window, at most ``limit``."""
    reset_s: float
    """Seconds until all of the limit is free again."""
    scope: Scope = "user"
    """Whose limit it is."""

    @property
    def remaining(self) -> int:
        """Calls, or tokens, that may still come."""
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
        """What the user has used of its limit; None if this policy holds it to none."""
        ...

    def forget_idle(self, now_s: float) -> None:
        """Drop the keys that no longer matter; called about once a second."""
        ...

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """State as plain JSON values; ages, not times."""
        ...

    def restore(self, state: dict[str, Any], now_s: float) -> None:
        """Replace the state by an earlier snapshot."""
        ...
