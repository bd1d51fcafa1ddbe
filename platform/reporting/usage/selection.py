"""Select the rollup rows of a report at the coarsest sufficient level.

Rows by user are the most expensive and are read only for reports by user. Quarter hours are read only
where UTC days do not suffice: for hours, days of another zone, and the ends of a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, and_, case, or_

from fairserve.platform.reporting.usage.levels import DAY_S, Detail, RollupTable, Span, level
from fairserve.platform.reporting.usage.schemas import Group
from fairserve.platform.reporting.usage.zones import Offset

_COLUMNS = {"tenant": "tenant_id", "app": "app_id", "user": "user_id"}
"""Columns of groups, where they have other names."""
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters, groups and time range of a report; None is no filter, or an open end."""

    groups: tuple[Group, ...]
    tenant_id: str | None
    app_id: str | None
    user_id: str | None
    model: str | None
    begin_s: int | None
    end_s: int | None
    offsets: Sequence[Offset]
    """Offsets of the zone over the time range."""

    @property
    def calls_only(self) -> bool:
        """Return whether the report covers calls only: no run or rejection has a model or a tier."""
        return self.model is not None or not {"model", "service_tier"}.isdisjoint(self.groups)

    def grouped(self, *groups: Group) -> Selection:
        """Return a selection of the same rows with other groups."""
        return replace(self, groups=groups)

    def where(self, table: RollupTable) -> list[ColumnElement[bool]]:
        """Return the conditions for the rows of a table to sum."""
        column = table.table.c
        filters = {
            "tenant_id": self.tenant_id,
            "app_id": self.app_id,
            "user_id": self.user_id,
            "model": self.model,
        }
        return [
            or_(*self._ranges(column)),
            *(
                column[name] == value
                for name, value in filters.items()
                if value is not None and name in column
            ),
        ]

    def keys(self, table: RollupTable) -> list[ColumnElement[Any]]:
        """Return the groups as columns; a day is its number since 1970, an hour its first second."""
        return [self._key(table, group).label(group) for group in self.groups]

    def _key(self, table: RollupTable, group: Group) -> ColumnElement[Any]:
        start = table.table.c.start_s
        if group == "day":
            return (start + self._offset(start)) // DAY_S
        if group == "hour":
            return (start + self._offset(start)) // HOUR_S * HOUR_S - self._offset(start)
        return table.table.c[_COLUMNS.get(group, group)]

    def _offset(self, start: ColumnElement[int]) -> ColumnElement[int] | int:
        *steps, last = self.offsets
        if not steps:
            return last.seconds
        ends = [after.start_s for after in self.offsets[1:]]
        parts = [(start < end, step.seconds) for step, end in zip(steps, ends, strict=True)]
        return case(*parts, else_=last.seconds)

    @property
    def _detail(self) -> Detail:
        if self.user_id is not None or "user" in self.groups:
            return "user"
        if self.app_id is not None or "app" in self.groups or self.calls_only:
            return "app"
        return "tenant"

    def _ranges(self, column: Any) -> Iterator[ColumnElement[bool]]:
        """Yield UTC days with quarter hours at the ends, or quarter hours only."""
        utc = all(offset.seconds == 0 for offset in self.offsets)
        if "hour" in self.groups or ("day" in self.groups and not utc):
            yield self._range(column, "quarter", self.begin_s, self.end_s)
            return
        begin_s = None if self.begin_s is None else -(-self.begin_s // DAY_S) * DAY_S
        end_s = None if self.end_s is None else self.end_s // DAY_S * DAY_S
        if begin_s is not None and end_s is not None and begin_s >= end_s:
            yield self._range(column, "quarter", self.begin_s, self.end_s)
            return
        yield self._range(column, "day", begin_s, end_s)
        if begin_s != self.begin_s:
            yield self._range(column, "quarter", self.begin_s, begin_s)
        if end_s != self.end_s:
            yield self._range(column, "quarter", end_s, self.end_s)

    def _range(
        self, column: Any, span: Span, begin_s: int | None, end_s: int | None
    ) -> ColumnElement[bool]:
        parts = [column.level == level(span, self._detail)]
        if begin_s is not None:
            parts.append(column.start_s >= begin_s)
        if end_s is not None:
            parts.append(column.start_s < end_s)
        return and_(*parts)
