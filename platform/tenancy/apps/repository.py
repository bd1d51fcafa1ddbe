"""Queries on apps. A query for a tenant is scoped to it; apps of a deleted tenant count as deleted."""

from __future__ import annotations

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, selectinload

from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.db.names import named
from fairserve.platform.db.schemas import NamedPaging


def tenant_exists(session: Session, tenant_id: str) -> bool:
    """Return whether the tenant exists and is not deleted; it may be suspended."""
    tenant = session.get(Tenant, tenant_id)
    return tenant is not None and tenant.deleted_at is None


def get(session: Session, tenant_id: str, app_id: str, *, lock: bool = False) -> App | None:
    """Return the tenant's app, deleted or not, with its profile; ``lock`` excludes other writers."""
    statement = (
        select(App)
        .where(App.id == app_id, App.tenant_id == tenant_id)
        .options(selectinload(App.stages), selectinload(App.limits))
    )
    if lock:
        statement = statement.with_for_update(of=App)
    return session.scalars(statement).one_or_none()


def locked(session: Session, app_id: str) -> App | None:
    """Return a live app of any tenant with its profile, and lock its row."""
    return session.scalars(
        select(App)
        .join(App.tenant)
        .where(App.id == app_id, Tenant.deleted_at.is_(None))
        .options(selectinload(App.stages), selectinload(App.limits))
        .with_for_update(of=App)
    ).one_or_none()


def origins_of_others(session: Session, app: App) -> int:
    """Return the number of origins of the tenant's other apps."""
    found = session.scalars(
        select(App.cors_origins).where(
            App.tenant_id == app.tenant_id, App.id != app.id, App.cors_origins.is_not(None)
        )
    )
    return sum(len(origins or ()) for origins in found)


def by_name(session: Session, tenant_id: str, name: str) -> App | None:
    """Return the tenant's app of this name, unless it is deleted."""
    return session.scalars(
        select(App).where(App.tenant_id == tenant_id, App.name == name, App.deleted_at.is_(None))
    ).one_or_none()


def listed(tenant_id: str | None, query: NamedPaging) -> Select[App]:
    """Return the statement of the matching apps of one or all tenants, oldest first."""
    deleted = App.deleted_at.is_not(None) if query.deleted else App.deleted_at.is_(None)
    owned = () if tenant_id is None else (App.tenant_id == tenant_id,)
    return (
        select(App)
        .join(App.tenant)
        .where(deleted, Tenant.deleted_at.is_(None), *owned, *named(App.name, query.name))
        .options(selectinload(App.stages), selectinload(App.limits))
        .order_by(App.created_at, App.id)
    )
