"""Settings of contract limits and of what is billed."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class BillingSettings(BaseSettings):
    """A part of :class:`fairserve.platform.server.settings.Settings`."""

    currency: str = Field(
        "USD",
        pattern=r"^[A-Z]{3}$",
        description="Of prices, budgets and costs, three letters (ISO 4217). Amounts are not converted "
        "when it changes.",
    )
    usage_retention_days: int = Field(
        730,
        ge=1,
        le=3650,
        description="Days that usage reports reach back. They are made of rollups, which stay when "
        "the ledger's rows are gone.",
    )
    usage_rollup_interval_s: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="How often the ledger is rolled up for usage reports, which are that fresh.",
    )
    contract_limits: bool = Field(
        True,
        description="Contract limits of tenants, apps and users (calls and tokens a minute, parallel "
        "calls, budgets) refuse calls. Off: they are counted, and refuse nothing.",
    )
    contract_rates_cut_runs: bool = Field(
        False,
        description="The contract's calls and tokens a minute refuse calls of runs under way, too, as "
        "plain rate limits do. Off: a run that has begun is finished, and new ones wait. Parallel calls "
        "and hard budgets bind in both cases.",
    )
