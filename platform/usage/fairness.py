"""How the service was divided, against how weights say that it should be.

Over tenants, apps or users: a holder's share of the service beside its weight over the sum of the
weights of those with service, and Jain's index (Jain, Chiu and Hawe, 1984) of x = service / weight,
which is (sum x)^2 / (n sum x^2): 1 where all got the same for their weight, 1/n where one got all.

Weights are those of now. An app weighs its own times its tenant's, a user likewise; within one tenant
that changes no share. Weakness: who asked for little got little, which is no injustice; the index does
not know what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Subquery, and_, func, select
from sqlalchemy.orm import Session

from fairserve.platform.db.identity import App, EndUser, Tenant
from fairserve.platform.db.schemas import MAX_PAGE
from fairserve.platform.usage.levels import CALLS
from fairserve.platform.usage.schemas import Fairness, Group, UsageRow
from fairserve.platform.usage.selection import Selection

_TIMES: tuple[Group, ...] = ("day", "hour")


class Division(NamedTuple):
    """Service and weights of all holders with service, and Jain's index of one over the other."""

    service: float
    weight: float
    jain_index: float


def division(session: Session, selection: Selection) -> Division | None:
    """Over all holders of a report; None if it has none, or is not by one kind of them."""
    holders = _holders(selection)
    if not holders:
        return None
    found = _weighed(selection.grouped(*holders))
    service, weight, x = found.c.service, found.c.weight, found.c.service / found.c.weight
    count, *sums = session.execute(
        select(func.count(), *(func.sum(part) for part in (service, weight, x, x * x)))
    ).one()
    if not count:
        return None
    of_service, of_weight, total, squares = map(float, sums)
    return Division(of_service, of_weight, total**2 / (count * squares))


def add_fairness(
    session: Session,
    selection: Selection,
    whole: Division,
    keys: Sequence[tuple[Any, ...]],
    items: Sequence[UsageRow],
) -> None:
    """Give each group of a page its shares, within its day or hour where the report has those."""
    if not items:
        return
    holders = _holders(selection)
    times = [group for group in selection.groups if group in _TIMES]
    totals = _by_time(session, selection, times) if times else {(): (whole.service, whole.weight)}
    weights = _weights(session, selection, items)
    for key, row in zip(keys, items, strict=True):
        named = dict(zip(selection.groups, key, strict=True))
        total = totals.get(tuple(named[time] for time in times))
        if total is None or not row.service:
            continue
        weight = weights[tuple(named[group] for group in holders)]
        row.fairness = Fairness(
            service_share=row.service / total[0], entitled_share=weight / total[1]
        )


def _by_time(
    session: Session, selection: Selection, times: Sequence[Group]
) -> dict[tuple[Any, ...], tuple[float, float]]:
    found = _weighed(selection)
    columns = [found.c[group] for group in times]
    sums = func.sum(found.c.service), func.sum(found.c.weight)
    return {
        tuple(time): (float(service), float(weight))
        for *time, service, weight in session.execute(select(*columns, *sums).group_by(*columns))
    }


def _holders(selection: Selection) -> tuple[Group, ...]:
    """The groups that say whose service it is, if they are of one kind; users have a tenant."""
    holders = tuple(group for group in selection.groups if group not in _TIMES)
    return holders if set(holders) - {"tenant"} in (set(), {"app"}, {"user"}) else ()


def _weighed(selection: Selection) -> Subquery:
    """Service and weight of every group with service."""
    return _joined(selection, selection.where(CALLS)).subquery()


def _joined(selection: Selection, where: Sequence[ColumnElement[bool]]) -> Select[Any]:
    column = CALLS.table.c
    keys = selection.keys(CALLS)
    tenant = func.max(column.tenant_id).label("of_tenant")
    sums = (
        select(*keys, tenant, func.sum(column.service).label("service"))
        .where(*where)
        .group_by(*keys)
        .having(func.sum(column.service) > 0)
        .subquery()
    )
    weight: ColumnElement[Any] = func.coalesce(Tenant.weight, 1.0)
    joined = sums.outerjoin(Tenant, Tenant.id == sums.c.of_tenant)
    if "app" in selection.groups:
        weight = weight * func.coalesce(App.weight, 1.0)
        joined = joined.outerjoin(App, App.id == sums.c.app)
    if "user" in selection.groups:
        weight = weight * func.coalesce(EndUser.weight, 1.0)
        joined = joined.outerjoin(
            EndUser,
            and_(EndUser.tenant_id == sums.c.of_tenant, EndUser.external_id == sums.c.user),
        )
    groups = [sums.c[group] for group in selection.groups]
    return select(*groups, sums.c.service, weight.label("weight")).select_from(joined)


def _weights(
    session: Session, selection: Selection, items: Sequence[UsageRow]
) -> dict[tuple[Any, ...], float]:
    """The weights of the page's holders."""
    column = CALLS.table.c
    names = {"tenant": column.tenant_id, "app": column.app_id, "user": column.user_id}
    holders = _holders(selection)
    page = []
    if len(items) <= MAX_PAGE:
        page = [
            names[group].in_(sorted({getattr(row, group) for row in items})) for group in holders
        ]
    whole = selection.grouped(*holders)
    found = session.execute(_joined(whole, [*whole.where(CALLS), *page]))
    return {tuple(row[: len(holders)]): float(row.weight) for row in found}
