"""Settings of quotas, billing, retention, learned profiles and sign-ins."""

from __future__ import annotations

from pydantic import Field

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.settings import RoomSettings


class TenancySettings(RoomSettings):
    """Currency, quotas, retention of their records, learned profiles, and sign-ins."""

    currency: str = Field(
        "USD",
        pattern=r"^[A-Z]{3}$",
        description="Currency of prices, budgets and costs, three letters (ISO 4217). Amounts are "
        "not converted when it changes.",
    )
    contract_limits: bool = Field(
        True,
        description="Enforce the quotas of tenants, apps and users (calls and tokens a minute, "
        "parallel calls, budgets). Off: usage is counted, but no quota rejects a call.",
    )
    contract_rates_cut_runs: bool = Field(
        False,
        description="Let the quotas of calls and tokens a minute reject calls of active "
        "interactions, too, as plain rate limits do. Off: an active interaction is "
        "finished, and new ones wait. Parallel calls and hard budgets are enforced in "
        "both cases.",
    )
    interaction_idle_timeout_s: float = Field(
        300.0,
        gt=0,
        le=7 * 86_400,
        description="Seconds without a call after which an interaction ends, for apps that set no "
        "time-out.",
    )
    ledger_retention_days: int = Field(
        90,
        ge=1,
        le=36_500,
        description="Days for which calls, interactions, rejections, the audit log, and deleted "
        "tenants and apps are kept.",
    )
    profile_learning: bool = Field(
        True,
        description="Learn the token profiles of apps from the usage of their calls. Off: the "
        "declared profile holds, as in the paper.",
    )
    profile_learning_interval_s: float = Field(
        30.0,
        gt=0,
        le=86_400,
        description="Interval at which apps whose profile is not learned yet are examined; others "
        "every ten minutes at most.",
    )
    profile_window_days: float = Field(
        14.0, gt=0, le=365, description="Days of calls from which a profile is learned."
    )
    profile_learned_after: int = Field(
        100,
        ge=20,
        le=1_000_000,
        description="Calls of a stage, and interactions, after which the declared values no longer "
        "count.",
    )
    profile_max_growth_per_day: float = Field(
        2.0,
        ge=1,
        description="Factor by which a learned profile may grow in a day; inf is no bound. It "
        "shrinks at once.",
    )
    profile_believed_tokens: float = Field(
        4800.0,
        gt=0,
        description="Upper bound of the weighted tokens of a typical call that is only declared "
        "and never measured; inf trusts every declaration.",
    )
    console_session_hours: float = Field(
        8.0,
        gt=0,
        le=24 * 7,
        description="Hours after which a sign-in to the console ends.",
    )
    console_idle_minutes: float = Field(
        60.0,
        gt=0,
        le=24 * 60 * 7,
        description="Minutes without a request or an open page after which a sign-in ends earlier.",
    )

    @property
    def learning_options(self) -> LearningOptions | None:
        """Return the options of profile learning; None if it is off."""
        if not self.profile_learning:
            return None
        return LearningOptions(
            window_s=self.profile_window_days * 86_400,
            learned_after=self.profile_learned_after,
            max_growth_per_day=self.profile_max_growth_per_day,
            believed_tokens=self.profile_believed_tokens,
        )
