"""Bound the number and the bytes of an app's rows of one table: beyond that its oldest are deleted.

Counting the rows for each new one would cost their number. So counts are kept in memory as upper bounds,
counted again when one reaches a bound, and a tenth of the bound is then free: O(1) for each new row,
amortised.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

MAX_COUNTED_APPS = 10_000
KEPT_SHARE = 0.9
"""Share of a bound that is kept when it is reached."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Bounds of stored responses and conversations; see the settings of the same names."""

    response_store: bool = True
    response_max_per_app: int = 10_000
    response_max_bytes_per_app: int = 256 * 1024 * 1024


class AppBounds:
    """Bounds of a table with ``tenant_id``, ``app_id``, ``id`` and ``size_bytes``. Any thread."""

    def __init__(
        self,
        model: Any,
        order: InstrumentedAttribute[Any],
        max_rows: int,
        max_bytes: int,
        removable: ColumnElement[bool] | None = None,
    ) -> None:
        """``order`` is the time by which rows are the oldest; only ``removable`` ones are deleted."""
        self._model, self._order, self._removable = model, order, removable
        self._bounds = max_rows, max_bytes
        self._counts: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, session: Session, tenant: str, app: str, rows: int, size_bytes: int) -> None:
        """Count rows and bytes that were added, and delete the oldest if there are too many."""
        with self._lock:
            known = self._counts.pop((tenant, app), None)
        if known is None:
            total = self._count(session, tenant, app)
        else:
            total = known[0] + rows, known[1] + size_bytes
        if self._exceeded(total):
            total = self._count(session, tenant, app)
            if self._exceeded(total):
                total = self._delete_oldest(session, tenant, app, *total)
        with self._lock:
            self._counts[tenant, app] = total
            while len(self._counts) > MAX_COUNTED_APPS:
                self._counts.popitem(last=False)

    def _exceeded(self, total: tuple[int, int]) -> bool:
        return total[0] > self._bounds[0] or total[1] > self._bounds[1]

    def _count(self, session: Session, tenant: str, app: str) -> tuple[int, int]:
        size_bytes = func.coalesce(func.sum(self._model.size_bytes), 0)
        query = select(func.count(), size_bytes).where(self._of(tenant, app))
        found = session.execute(query).one()
        return int(found[0]), int(found[1])

    def _delete_oldest(
        self, session: Session, tenant: str, app: str, rows: int, size_bytes: int
    ) -> tuple[int, int]:
        """Delete the oldest rows down to the kept share; return what remains."""
        model = self._model
        most_rows, most_bytes = (max(1, int(bound * KEPT_SHARE)) for bound in self._bounds)
        query = select(model.id, model.size_bytes).where(self._of(tenant, app))
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
            session.execute(delete(model).where(self._of(tenant, app), chosen))
        return rows, size_bytes

    def _of(self, tenant: str, app: str) -> ColumnElement[bool]:
        found: ColumnElement[bool] = (self._model.tenant_id == tenant) & (self._model.app_id == app)
        return found
