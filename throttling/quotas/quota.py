"""Contract limits of one holder: rates, parallel calls, and a budget per period.

Unlike the limits of a throttling policy, contract limits apply at any load. Amounts of money are
whole nanounits (1e-9) of the deployment's currency, so that sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fairserve.throttling.quotas.periods import Period, parse_duration

QuotaScope = Literal["tenant", "app", "app_user", "user"]
"""``app_user``: each user of an app; ``user``: one user across all apps of its tenant."""

SoftEnd = Literal["warn", "finish_runs"]

MAX_LIMIT = 1_000_000_000
MAX_AMOUNT = 10**18
"""Maximum amount in nanounits: a thousand million of the currency."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one holder; None means no limit. The names are those of comparable products.

    Raises ValueError for a limit out of range, a budget without a duration, or a soft budget over
    the hard one.
    """

    rpm_limit: int | None = None
    """Calls in any 60 seconds."""
    tpm_limit: int | None = None
    """Prompt and output tokens in any 60 seconds; running calls count with their maximum output."""
    max_parallel_requests: int | None = None
    """Maximum calls in progress, waiting or running."""
    max_budget: int | None = None
    """Hard limit of the budget in nanounits per period."""
    soft_budget: int | None = None
    soft_end: SoftEnd = "warn"
    """Effect beyond ``soft_budget``: a warning in responses, or no new runs."""
    budget_duration: str | None = None
    """Length of the budget's period (:func:`~fairserve.throttling.quotas.periods.parse_duration`).
    Without a budget, spending is counted but not limited."""

    def __post_init__(self) -> None:
        for name in ("rpm_limit", "tpm_limit", "max_parallel_requests"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_LIMIT:
                raise ValueError(f"{name} is {value}; allowed: 1 to {MAX_LIMIT}, or null")
        for name in ("max_budget", "soft_budget"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_AMOUNT:
                raise ValueError(
                    f"{name} is {value} nanounits; allowed: 0 to {MAX_AMOUNT}, or null"
                )
        if self.soft_end not in ("warn", "finish_runs"):
            raise ValueError(f"soft_end is {self.soft_end!r}; allowed: warn, finish_runs")
        if self.budget_duration is not None:
            parse_duration(self.budget_duration)
        elif self.max_budget is not None or self.soft_budget is not None:
            raise ValueError("a budget needs a budget_duration")
        if (
            self.soft_budget is not None
            and self.max_budget is not None
            and self.soft_budget > self.max_budget
        ):
            raise ValueError("soft_budget is over max_budget")

    @property
    def period(self) -> Period | None:
        """Return the period of the budget; None without a duration."""
        return None if self.budget_duration is None else parse_duration(self.budget_duration)

    def without(self, own: Quota) -> Quota:
        """Return the defaults that a holder's ``own`` limits do not replace.

        Spending is still counted against a replaced budget.
        """
        return _without(self, own)


UNLIMITED = Quota()


@lru_cache(maxsize=4096)
def _without(quota: Quota, own: Quota) -> Quota:
    if own.rpm_limit is not None:
        quota = replace(quota, rpm_limit=None)
    if own.tpm_limit is not None:
        quota = replace(quota, tpm_limit=None)
    if own.max_parallel_requests is not None:
        quota = replace(quota, max_parallel_requests=None)
    if own.budget_duration is not None:
        quota = replace(quota, max_budget=None, soft_budget=None)
    return quota
