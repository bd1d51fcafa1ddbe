"""Queries on apps. Every one that serves a tenant is scoped to it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session, selectinload

from fairserve.platform.db.identity import App, Tenant


def tenant_exists(session: Session, tenant_id: str) -> bool:
    """Whether there is such a tenant, suspended or not."""
    return session.get(Tenant, tenant_id) is not None


def get(session: Session, tenant_id: str, app_id: str, *, lock: bool = False) -> App | None:
    """The tenant's app with its profile and limits; ``lock`` keeps other writers off it."""
    statement = (
        select(App)
        .where(App.id == app_id, App.tenant_id == tenant_id)
        .options(selectinload(App.stages), selectinload(App.limits))
    )
    if lock:
        statement = statement.with_for_update(of=App)
    return session.scalars(statement).one_or_none()


def by_name(session: Session, tenant_id: str, name: str) -> App | None:
    """The tenant's app of this name."""
    return session.scalars(
        select(App).where(App.tenant_id == tenant_id, App.name == name)
    ).one_or_none()


def count(session: Session, tenant_id: str | None) -> int:
    """How many apps a tenant has, or all tenants together."""
    statement = select(func.count(App.id))
    if tenant_id is not None:
        statement = statement.where(App.tenant_id == tenant_id)
    return session.scalar(statement) or 0


def page(session: Session, tenant_id: str | None, *, limit: int, offset: int) -> Sequence[App]:
    """Apps of a tenant, or of all, oldest first."""
    statement = (
        select(App)
        .options(selectinload(App.stages), selectinload(App.limits))
        .order_by(App.created_at, App.id)
        .limit(limit)
        .offset(offset)
    )
    if tenant_id is not None:
        statement = statement.where(App.tenant_id == tenant_id)
    return session.scalars(statement).all()
