"""Settings of quotas, billing, retention, learned profiles and sign-ins."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.settings import RoomSettings, word_of_switch

QuotaEnforcement = Literal["new_runs", "every_call", "off"]


class TenancySettings(RoomSettings):
    """Currency, quotas, retention of their records, learned profiles, and sign-ins."""

    currency: str = Field(
        "USD",
        pattern=r"^[A-Z]{3}$",
        description="Currency of prices, budgets and costs, three letters (ISO 4217). Amounts are "
        "not converted when it changes.",
    )
    quota_enforcement: Annotated[QuotaEnforcement, BeforeValidator(word_of_switch)] = Field(
        "new_runs",
        description="Calls that the quotas of tenants, apps and users reject. new_runs: calls and "
        "tokens a minute reject new interactions, active ones are finished; parallel calls and hard "
        "budgets reject every call. every_call: all quotas reject every call, as plain rate limits do. "
        "off: usage is counted, and no quota rejects a call.",
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
    console_session_hours: float = Field(
        8.0,
        gt=0,
        le=24 * 7,
        description="Hours after which a sign-in to the console ends.",
    )

    @property
    def learning_options(self) -> LearningOptions:
        """Return the options of profile learning, which are constants."""
        return LearningOptions()
