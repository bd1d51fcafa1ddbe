"""Events that carry the database's settings to control: apps, weights, quotas, and users' settings.

:func:`load_control_events` is for the start-up, the others follow each change. Deleted rows are sent,
too, until they are purged: their last calls may still be in progress, and a restore sends nothing.
"""

from __future__ import annotations

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, selectinload

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App, EndUser, Tenant
from fairserve.platform.tenancy.apps.limits import limits_in_force
from fairserve.platform.tenancy.profiles.repository import profiles_in_force
from fairserve.platform.tenancy.quotas.repository import all_contracts
from fairserve.platform.tenancy.quotas.service import contract_changed
from fairserve.scheduling.events import AppChanged, Event, TenantChanged, UserChanged


def app_changed(app: App, profile: AppProfile) -> AppChanged:
    """Return the event for an app, with its profile in force."""
    limits = limits_in_force(app.limits)
    return AppChanged(
        app.id,
        profile,
        limits,
        app.weight,
        version=app.profile_version,
        priority_weight=app.priority_weight,
    )


def tenant_changed(tenant: Tenant) -> TenantChanged:
    """Return the event for a tenant."""
    return TenantChanged(tenant.id, tenant.weight, tenant.levels)


def user_changed(user: EndUser) -> UserChanged:
    """Return the event for a user."""
    return UserChanged(
        user.tenant_id,
        user.external_id,
        user.weight,
        user.rpm,
        user.blocked,
        priority_weight=user.priority_weight,
    )


def load_control_events(session: Session, learning: LearningOptions | None) -> list[Event]:
    """Return all events that control needs before its first call, in a stable order."""
    read_only(session)
    tenants = session.scalars(
        select(Tenant)
        .where(or_(Tenant.weight != 1.0, Tenant.levels.is_not(None)))
        .order_by(Tenant.created_at, Tenant.id)
    )
    events: list[Event] = [tenant_changed(tenant) for tenant in tenants]
    apps = session.scalars(
        select(App)
        .options(selectinload(App.stages), selectinload(App.limits))
        .order_by(App.created_at, App.id)
    ).all()
    profiles = profiles_in_force(session, apps, learning)
    events.extend(app_changed(app, profiles[app.id]) for app in apps)
    users = session.scalars(select(EndUser).order_by(EndUser.tenant_id, EndUser.external_id))
    events.extend(user_changed(user) for user in users)
    events.extend(contract_changed(contract) for contract in all_contracts(session))
    return events
