"""View of an app for the API."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy.orm import Session

from fairserve.interactions.run_rules import known_rules
from fairserve.platform.db.identity import App
from fairserve.platform.db.schemas import view_of
from fairserve.platform.tenancy.apps.limits import new_users_in_force
from fairserve.platform.tenancy.apps.schemas import AppOut, LimitsOut, ProfileOut
from fairserve.platform.tenancy.apps.user_headers import DEFAULT_USER_HEADERS
from fairserve.platform.tenancy.profiles.repository import declared_profile
from fairserve.platform.tenancy.quotas import repository as contracts
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.platform.tenancy.quotas.schemas import ContractOut
from fairserve.platform.tenancy.quotas.service import shown


def describe_all(session: Session, apps: Collection[App], retention: timedelta) -> list[AppOut]:
    """Return the API's view of apps; ``retention`` is the time for which deleted ones are kept."""
    found = contracts.of_apps(session, [app.id for app in apps])
    return [
        _out(
            app,
            shown(found.get(Holder(app.tenant_id, "app", app.id))),
            shown(found.get(Holder(app.tenant_id, "app_user", app.id))),
            retention,
        )
        for app in apps
    ]


def warnings_of(app: App) -> list[str]:
    """Return warnings about valid but probably wrong values: limits below the calls of two runs."""
    calls = app.calls_per_interaction
    return [
        f"{name} is {limit}, less than twice the {calls:g} calls of a run; limits count every"
        " call: set it to several times the calls per run"
        for name in ("user_rpm", "app_rpm")
        if (limit := getattr(app.limits, name)) is not None and limit < 2 * calls
    ]


def _out(app: App, contract: ContractOut, user_contract: ContractOut, kept: timedelta) -> AppOut:
    profile = declared_profile(app)
    in_force = new_users_in_force(app.limits)
    return view_of(
        AppOut,
        app,
        profile=ProfileOut.model_validate(profile, from_attributes=True),
        limits=view_of(LimitsOut, app.limits, new_users_in_force=in_force),
        contract=contract,
        user_contract=user_contract,
        user_headers=list(DEFAULT_USER_HEADERS if app.user_headers is None else app.user_headers),
        cors_origins=app.cors_origins or [],
        run_rules=None if app.run_rules is None else list(known_rules(app.run_rules)),
        purge_after=app.deleted_at and app.deleted_at + kept,
        warnings=warnings_of(app),
    )
