"""A usage report beside that of the equally long period before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

from fairserve.platform.db.schemas import MAX_PAGE
from fairserve.platform.reporting.usage.schemas import (
    Group,
    Usage,
    UsageQuery,
    UsageReport,
    UsageRow,
)

WHOLE: dict[str, Any] = {"limit": MAX_PAGE, "offset": 0}
"""Longest page of a report."""
MOST_MOVERS = 5

Ask = Callable[[UsageQuery], UsageReport]
Key = tuple[Any, ...]


class Mover(NamedTuple):
    """A group with its amounts in both periods, in the currency or in tokens."""

    row: UsageRow
    before: float
    now: float


@dataclass(frozen=True, slots=True)
class UsageChange:
    """The period before a report, and what has changed since."""

    first: date
    last: date
    sums: Usage
    """Sums over all groups in the period before."""
    in_money: bool
    """True if movers are compared by cost, false if by tokens."""
    movers: Sequence[Mover]
    """Groups whose amounts differ most, the greatest difference first; none for days and hours."""
    names: Mapping[str, str]
    """Names of the tenants and apps among the movers."""
    rows: Mapping[Key, UsageRow]
    groups: Sequence[Group]

    def before(self, row: UsageRow) -> Usage:
        """Return the sums of a row's group in the period before; zeros without usage."""
        return self.rows.get(_key(row, self.groups), _NOTHING)


_NOTHING = UsageRow()


def usage_change(query: UsageQuery, ask: Ask, today: date) -> UsageChange:
    """Return how the report for ``query`` differs from that of the equally long period before it.

    ``query`` has a first day; without a last one it ends ``today``.
    """
    assert query.first_day is not None
    begin = query.first_day.toordinal()
    end = (query.last_day or max(today, query.first_day)).toordinal() + 1
    first, last = (date.fromordinal(max(1, day)) for day in (begin - (end - begin), begin - 1))
    whole = query.model_copy(update={"sort": "tokens", **WHOLE})
    past = ask(whole.model_copy(update={"first_day": first, "last_day": last}))
    groups = past.group_by
    if {"day", "hour"} & set(groups):
        return UsageChange(first, last, past.sums, False, (), {}, {}, groups)
    now = ask(whole)
    in_money = bool(now.sums.cost or past.sums.cost)
    before = {_key(row, groups): row for row in past.items}
    after = {_key(row, groups): row for row in now.items}
    movers = [
        Mover(
            after.get(key) or before[key],
            _amount(before.get(key, _NOTHING), in_money),
            _amount(after.get(key, _NOTHING), in_money),
        )
        for key in before.keys() | after.keys()
    ]
    movers.sort(key=lambda each: -abs(each.now - each.before))
    return UsageChange(
        first,
        last,
        past.sums,
        in_money,
        [each for each in movers[:MOST_MOVERS] if each.now != each.before],
        past.names | now.names,
        before,
        groups,
    )


def _key(row: UsageRow, groups: Sequence[Group]) -> Key:
    return tuple(getattr(row, group) for group in groups)


def _amount(usage: Usage, in_money: bool) -> float:
    return float(usage.cost) if in_money else usage.input_tokens + usage.output_tokens
