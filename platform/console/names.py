"""What people call tenants and apps."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from fairserve.platform.db.identity import App, Tenant


def names_of(
    session: Session, *, tenants: Collection[str] = (), apps: Collection[str] = ()
) -> dict[str, str]:
    """By id, of those that there are."""
    names: dict[str, str] = {}
    for kind, ids in ((Tenant, tenants), (App, apps)):
        if ids:
            rows = session.execute(select(kind.id, kind.name).where(kind.id.in_(ids)))
            names.update((row[0], row[1]) for row in rows)
    return names
