"""Limits that a change in the audit log set, and the words of the button that restores them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fairserve.platform.console.formats import number
from fairserve.platform.tenancy.apps.schemas import LimitsBody
from fairserve.platform.tenancy.quotas.schemas import ContractBody

_ACTIONS = ("tenant.change", "app.change", "user.change")
_LIMITS = {
    "rpm",
    *(
        f"{quota}.{name}"
        for quota in ("contract", "user_contract")
        for name in ContractBody.model_fields
    ),
    *(f"limits.{name}" for name in LimitsBody.model_fields),
}
"""Fields of a tenant, an app or a user that are limits."""


class LimitChange(NamedTuple):
    """A limit with its values before and after a change."""

    field: str
    before: Any
    after: Any


def restorable(action: str, differences: Iterable[tuple[str, Any, Any]]) -> list[LimitChange]:
    """Return the limits among the fields that a change set: name, former and new value of each."""
    if action not in _ACTIONS:
        return []
    return [LimitChange(*each) for each in differences if each[0] in _LIMITS]


def verb_of(limits: Sequence[LimitChange]) -> str:
    """Return what the button restores: ``Restore 6,000``."""
    one = limits[0].before if len(limits) == 1 else "the former limits"
    return f"Restore {limit_text(one)}"


def effect_of(limits: Iterable[LimitChange], name: str) -> str:
    """Return what restoring does, for the dialog."""
    values = ", ".join(
        f"{each.field} from {limit_text(each.after)} to {limit_text(each.before)}"
        for each in limits
    )
    return f"Sets {values} for {name}, unless it was changed since. It applies from the next call."


def limit_text(value: Any) -> str:
    """Return the value of a limit in words."""
    if value is None:
        return "no limit"
    if isinstance(value, list):
        return ", ".join(value)
    return value if isinstance(value, str) else number(value)
