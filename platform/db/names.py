"""Look-up of the names of tenants, apps and keys."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from fairserve.platform.db.identity import ApiKey, App, Tenant


def named(column: InstrumentedAttribute[str], part: str) -> list[ColumnElement[bool]]:
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


def ids_named(session: Session, part: str, tenant_id: str | None) -> frozenset[str]:
    """Return the ids of apps of a tenant, or of all tenants and apps, by a part of the name.

    Cost: O(tenants + apps) in the database.
    """
    apps = select(App.id).where(*named(App.name, part))
    if tenant_id is not None:
        return frozenset(session.scalars(apps.where(App.tenant_id == tenant_id)))
    tenants = select(Tenant.id).where(*named(Tenant.name, part))
    return frozenset((*session.scalars(apps), *session.scalars(tenants)))
