"""Queries on apps. A query for a tenant is scoped to it; apps of a deleted tenant count as deleted."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
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


def count(session: Session, tenant_id: str | None, *, deleted: bool, name: str = "") -> int:
    """Return the number of live or deleted apps of one or all tenants; ``name`` is a substring."""
    which = _which(tenant_id, deleted, name)
    return session.scalar(select(func.count(App.id)).join(App.tenant).where(*which)) or 0


def page(session: Session, tenant_id: str | None, query: NamedPaging) -> Sequence[App]:
    """Return the matching apps of one or all tenants, oldest first."""
    statement = (
        select(App)
        .join(App.tenant)
        .where(*_which(tenant_id, query.deleted, query.name))
        .options(selectinload(App.stages), selectinload(App.limits))
        .order_by(App.created_at, App.id)
        .limit(query.limit)
        .offset(query.offset)
    )
    return session.scalars(statement).all()


def _which(tenant_id: str | None, deleted: bool, name: str) -> list[ColumnElement[bool]]:
    own = App.deleted_at.is_not(None) if deleted else App.deleted_at.is_(None)
    conditions = [own, Tenant.deleted_at.is_(None), *named(App.name, name)]
    if tenant_id is not None:
        conditions.append(App.tenant_id == tenant_id)
    return conditions
