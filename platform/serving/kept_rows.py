"""Bound the number and the bytes of the rows of an app, and of a tenant, in one table.

Beyond a bound the owner's oldest rows are deleted, until a tenth of it is free. Counting the rows for
each new one would cost their number. So counts are kept in memory, and the rows are counted again once
this process has added a tenth of the bound, and at the bound: O(1) for each new row, amortised.

Weakness: the rows that other servers add are counted late, so that each of them may exceed a bound by a
tenth.
"""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select, true, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.db.sums import MAX_WHOLE

MAX_COUNTED_OWNERS = 10_000
KEPT_SHARE = 0.9
"""Share of a bound that is kept when it is reached."""

Owner = tuple[str, ...]
"""Tenant and app, or tenant."""
Amounts = tuple[int, int]
"""Rows and bytes."""


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Most rows, and their bytes, of an owner."""

    rows: int
    size_bytes: int = MAX_WHOLE


class KeptRows:
    """Bounds of a table with ``tenant_id``, ``app_id`` and ``id``. Any thread."""

    def __init__(
        self,
        model: Any,
        order: InstrumentedAttribute[Any],
        *,
        of_app: RowBounds,
        of_tenant: RowBounds,
        size: ColumnElement[Any] | InstrumentedAttribute[Any],
        removable: ColumnElement[bool] | None = None,
    ) -> None:
        """``order`` is the time by which rows are the oldest; only ``removable`` ones are deleted."""
        self._model, self._order, self._size = model, order, size
        self._removable = true() if removable is None else removable
        self._of_app, self._of_tenant = of_app, of_tenant
        self._counts: OrderedDict[Owner, tuple[Amounts, RowBounds]] = OrderedDict()
        """Amounts of each owner, and those beyond which it is counted again."""
        self._lock = threading.Lock()

    def add(self, session: Session, tenant: str, app: str, rows: int, size_bytes: int) -> None:
        """Count rows and bytes that were added, and delete the oldest if there are too many."""
        self._add(session, (tenant, app), self._of_app, rows, size_bytes)
        self._add(session, (tenant,), self._of_tenant, rows, size_bytes)

    def _add(
        self, session: Session, owner: Owner, bounds: RowBounds, rows: int, size_bytes: int
    ) -> None:
        with self._lock:
            known = self._counts.pop(owner, None)
        if known is not None:
            (known_rows, known_bytes), again = known
            total = known_rows + rows, known_bytes + size_bytes
        if known is None or _exceeded(total, again):
            total = self._count(session, owner)
            if _exceeded(total, bounds):
                total = self._delete_oldest(session, owner, bounds, *total)
            again = _counted_again(total, bounds)
        with self._lock:
            self._counts[owner] = total, again
            while len(self._counts) > MAX_COUNTED_OWNERS:
                self._counts.popitem(last=False)

    def _count(self, session: Session, owner: Owner) -> Amounts:
        size_bytes = func.coalesce(func.sum(self._size), 0)
        query = select(func.count(), size_bytes).where(self._of(owner))
        found = session.execute(query).one()
        return int(found[0]), int(found[1])

    def _delete_oldest(
        self, session: Session, owner: Owner, bounds: RowBounds, rows: int, size_bytes: int
    ) -> Amounts:
        """Delete the oldest rows down to the kept share; return what remains."""
        model = self._model
        most_rows = max(1, int(bounds.rows * KEPT_SHARE))
        most_bytes = int(bounds.size_bytes * KEPT_SHARE)
        query = select(model.app_id, model.id, self._size).where(self._of(owner), self._removable)
        gone: list[tuple[str, str]] = []
        for app_id, row_id, row_bytes in session.execute(query.order_by(self._order, model.id)):
            if rows <= most_rows and size_bytes <= most_bytes:
                break
            gone.append((app_id, row_id))
            rows -= 1
            size_bytes -= row_bytes
        for start in range(0, len(gone), 500):
            chosen = tuple_(model.app_id, model.id).in_(gone[start : start + 500])
            session.execute(delete(model).where(self._of(owner), chosen))
        return rows, size_bytes

    def _of(self, owner: Owner) -> ColumnElement[bool]:
        return and_(*map(operator.eq, (self._model.tenant_id, self._model.app_id), owner))


def _counted_again(total: Amounts, bounds: RowBounds) -> RowBounds:
    """Return the amounts beyond which an owner is counted again."""
    rows, size_bytes = total
    more = 1 - KEPT_SHARE
    return RowBounds(
        min(bounds.rows, rows + int(bounds.rows * more)),
        min(bounds.size_bytes, size_bytes + int(bounds.size_bytes * more)),
    )


def _exceeded(total: Amounts, bounds: RowBounds) -> bool:
    return total[0] > bounds.rows or total[1] > bounds.size_bytes
