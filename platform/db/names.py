"""Look-up of the names of tenants, apps and keys."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, SQLColumnExpression, or_, select
from sqlalchemy.orm import Session

from fairserve.platform.db.identity import ApiKey, App, Tenant


def named(column: SQLColumnExpression[str], part: str) -> list[ColumnElement[bool]]:
    """Return the condition that a name contains ``part``, ignoring case; no condition if it is empty.

    SQLite ignores the case of ASCII letters only.
    """
    return [column.icontains(part, autoescape=True)] if part else []


def names_of(
    session: Session,
    *,
    tenants: Collection[str] = (),
    apps: Collection[str] = (),
    keys: Collection[str] = (),
) -> dict[str, str]:
    """Return the names of the existing rows, by id. A key without a name has none."""
    names: dict[str, str] = {}
    for kind, ids in ((Tenant, tenants), (App, apps), (ApiKey, keys)):
        if ids:
            rows = session.execute(select(kind.id, kind.name).where(kind.id.in_(ids)))
            names.update((row[0], row[1]) for row in rows if row[1])
    return names


def owners_named(
    session: Session, text: str, tenant_id: str | None, most: int
) -> list[tuple[str, str, str]]:
    """Return kind, id and name of tenants and apps by a part of the name or an id, ``most`` of each.

    A tenant finds its apps alone. Cost as of :func:`ids_named`.
    """
    kinds = {"tenant": select(Tenant.id, Tenant.name), "app": select(App.id, App.name)}
    if tenant_id is not None:
        kinds = {"app": kinds["app"].where(App.tenant_id == tenant_id)}
    found: list[tuple[str, str, str]] = []
    for kind, rows in kinds.items():
        row_id, name = rows.selected_columns
        rows = rows.where(or_(*named(name, text), row_id == text))
        found += [(kind, *row) for row in session.execute(rows.order_by(name, row_id).limit(most))]
    return found


def ids_named(session: Session, part: str, tenant_id: str | None) -> frozenset[str]:
    """Return the ids of apps of a tenant, or of all tenants and apps, by a part of the name.

    Cost: O(tenants + apps) in the database.
    """
    apps = select(App.id).where(*named(App.name, part))
    if tenant_id is not None:
        return frozenset(session.scalars(apps.where(App.tenant_id == tenant_id)))
    tenants = select(Tenant.id).where(*named(Tenant.name, part))
    return frozenset((*session.scalars(apps), *session.scalars(tenants)))
