"""Bound the number and the bytes of the rows of an app, and of a tenant, in one table.

Beyond a bound the owner's oldest rows are deleted. Counting the rows for each new one would cost their
number. So counts are kept in memory as upper bounds, counted again when one reaches a bound, and a tenth
of the bound is then free: O(1) for each new row, amortised.
"""

from __future__ import annotations

import operator
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

MAX_COUNTED_OWNERS = 10_000
KEPT_SHARE = 0.9
"""Share of a bound that is kept when it is reached."""

Owner = tuple[str, ...]
"""Tenant and app, or tenant."""
Amounts = tuple[int, int]
"""Rows and bytes."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Bounds of stored responses and conversations; see the settings of the same names."""

    response_store: bool = True
    response_max_per_app: int = 10_000
    response_max_bytes_per_app: int = 256 * 1024 * 1024
    response_max_per_tenant: int = 100_000
    response_max_bytes_per_tenant: int = 1 << 30


class StoreBounds:
    """Bounds of a table with ``tenant_id``, ``app_id``, ``id`` and ``size_bytes``. Any thread."""

    def __init__(
        self,
        model: Any,
        order: InstrumentedAttribute[Any],
        options: StoreOptions,
        removable: ColumnElement[bool] | None = None,
    ) -> None:
        """``order`` is the time by which rows are the oldest; only ``removable`` ones are deleted."""
        self._model, self._order, self._removable = model, order, removable
        self._of_app = options.response_max_per_app, options.response_max_bytes_per_app
        self._of_tenant = options.response_max_per_tenant, options.response_max_bytes_per_tenant
        self._counts: OrderedDict[Owner, Amounts] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, session: Session, tenant: str, app: str, rows: int, size_bytes: int) -> None:
        """Count rows and bytes that were added, and delete the oldest if there are too many."""
        self._add(session, (tenant, app), self._of_app, rows, size_bytes)
        self._add(session, (tenant,), self._of_tenant, rows, size_bytes)

    def _add(
        self, session: Session, owner: Owner, bounds: Amounts, rows: int, size_bytes: int
    ) -> None:
        with self._lock:
            known = self._counts.pop(owner, None)
        if known is None:
            total = self._count(session, owner)
        else:
            total = known[0] + rows, known[1] + size_bytes
        if _exceeded(total, bounds):
            total = self._count(session, owner)
            if _exceeded(total, bounds):
                total = self._delete_oldest(session, owner, bounds, *total)
        with self._lock:
            self._counts[owner] = total
            while len(self._counts) > MAX_COUNTED_OWNERS:
                self._counts.popitem(last=False)

    def _count(self, session: Session, owner: Owner) -> Amounts:
        size_bytes = func.coalesce(func.sum(self._model.size_bytes), 0)
        query = select(func.count(), size_bytes).where(self._of(owner))
        found = session.execute(query).one()
        return int(found[0]), int(found[1])

    def _delete_oldest(
        self, session: Session, owner: Owner, bounds: Amounts, rows: int, size_bytes: int
    ) -> Amounts:
        """Delete the oldest rows down to the kept share; return what remains."""
        model = self._model
        most_rows, most_bytes = (max(1, int(bound * KEPT_SHARE)) for bound in bounds)
        query = select(model.id, model.size_bytes).where(self._of(owner))
        if self._removable is not None:
            query = query.where(self._removable)
        gone: list[str] = []
        for each in session.execute(query.order_by(self._order, model.id)):
            if rows <= most_rows and size_bytes <= most_bytes:
                break
            gone.append(each.id)
            rows -= 1
            size_bytes -= each.size_bytes
        for start in range(0, len(gone), 500):
            chosen = model.id.in_(gone[start : start + 500])
            session.execute(delete(model).where(self._of(owner), chosen))
        return rows, size_bytes

    def _of(self, owner: Owner) -> ColumnElement[bool]:
        return and_(*map(operator.eq, (self._model.tenant_id, self._model.app_id), owner))


def _exceeded(total: Amounts, bounds: Amounts) -> bool:
    return total[0] > bounds[0] or total[1] > bounds[1]
