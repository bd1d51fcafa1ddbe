"""The use of a quota beside its limits, for the pages of its tenant, app or user."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from fairserve.platform.base.money import NANO
from fairserve.platform.console.formats import money, number, seconds
from fairserve.throttling.quotas.contracts import ContractUse


class Meter(NamedTuple):
    """The use of one limit."""

    used: float
    limit: float
    text: str


Meters = Mapping[str, Meter]
"""Meters by the name of their limit in the API; limits that are not set have none."""


def meters_of(use: ContractUse) -> Meters:
    """Return the meters of the limits that are set."""
    counted = (
        ("rpm_limit", use.requests, "calls in the last 60 s"),
        ("tpm_limit", use.tokens, "tokens in the last 60 s"),
        ("max_parallel_requests", use.parallel, "calls in progress"),
    )
    meters = {
        name: Meter(
            found.used, found.limit, f"{number(found.used)} of {number(found.limit)} {unit}"
        )
        for name, found, unit in counted
        if found is not None
    }
    if use.budget is not None and use.budget.limit:
        spent, held, limit = (
            Decimal(amount) / NANO
            for amount in (use.budget.spent, use.budget.held, use.budget.limit)
        )
        text = f"{money(spent)} spent and {money(held)} reserved of {money(limit)}"
        meters["max_budget"] = Meter(
            float(spent + held),
            float(limit),
            f"{text}; resets in {seconds(use.budget.reset_s)}",
        )
    return meters
