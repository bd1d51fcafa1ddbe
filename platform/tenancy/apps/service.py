"""Operations on apps: register, change, suspend, delete, restore, and issue keys.

Methods use the request's session and do not commit. Changes are audited, and sent to control and the
key cache after the commit.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.errors import ConflictError, NotFoundError, PermissionDeniedError
from fairserve.platform.db import audit, keys
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import App, AppLimits, TokenProfile
from fairserve.platform.db.schemas import NamedPaging, NamedTenantPaging, Page
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.apps import repository
from fairserve.platform.tenancy.apps.control_events import app_changed
from fairserve.platform.tenancy.apps.inboxes import ControlInbox, ProgramInbox
from fairserve.platform.tenancy.apps.origins import MAX_TENANT_ORIGINS
from fairserve.platform.tenancy.apps.schemas import AppCreate, AppOut, AppPatch
from fairserve.platform.tenancy.apps.view import audited, describe_all
from fairserve.platform.tenancy.auth import Authenticator, Principal
from fairserve.platform.tenancy.keys.service import KeyRing
from fairserve.platform.tenancy.parts import TenancyParts
from fairserve.platform.tenancy.profiles.repository import (
    add_version,
    in_force,
    latest,
    profiles_in_force,
)
from fairserve.platform.tenancy.quotas import service as contracts
from fairserve.platform.tenancy.quotas.repository import Holder
from fairserve.platform.tenancy.settings import TenancySettings

MAX_APPS = 1000
"""Maximum number of live apps of a tenant."""
MAX_ROWS = 5000
"""Maximum number of apps of a tenant, including deleted ones that are not purged yet."""


class Apps:
    """The apps of one tenant within one request."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        authenticator: Authenticator,
        control: ControlInbox,
        programs: ProgramInbox,
        *,
        default_idle_timeout_s: float,
        retention: timedelta,
        learning: LearningOptions | None,
    ) -> None:
        assert principal.tenant_id is not None
        self._session = session
        self._principal = principal
        self._tenant_id = principal.tenant_id
        self._authenticator = authenticator
        self._control = control
        self._programs = programs
        self._default_idle_timeout_s = default_idle_timeout_s
        self._retention = retention
        self._learning = learning
        if not repository.tenant_exists(session, self._tenant_id):
            raise NotFoundError("there is no such tenant", param="tenant")

    def get(self, app_id: str) -> App:
        """Return one app, deleted or not. Raises NotFoundError, also for another tenant's app."""
        return self._get(app_id)

    def page(self, query: NamedPaging) -> tuple[list[AppOut], int]:
        """Return a page of the tenant's matching apps, and their number."""
        apps = repository.page(self._session, self._tenant_id, query)
        total = repository.count(
            self._session, self._tenant_id, deleted=query.deleted, name=query.name
        )
        return describe_all(self._session, apps, self._retention), total

    def describe(self, app: App) -> AppOut:
        """Return the API's view of an app."""
        return describe_all(self._session, [app], self._retention)[0]

    def create(self, body: AppCreate) -> tuple[App, keys.IssuedKey]:
        """Register an app with a first key."""
        self._check_weight(body.weight)
        self._check_capacity(new=True)
        self._check_name(body.name)
        app = App(
            id=new_id("app"),
            tenant_id=self._tenant_id,
            name=body.name,
            weight=1.0 if body.weight is None else body.weight,
            created_at=utc_now(),
            limits=AppLimits(**body.limits.model_dump()),
        )
        _set_profile(app, body.profile.profile(self._default_idle_timeout_s))
        self._session.add(app)
        self._session.flush()
        self._declared(app)
        self._notify_control(app)
        self._set_contracts(app, body)
        self._set_access(app, body)
        key = self._key_ring(app).issue()
        self._audit("app.create", app, None)
        return app, key

    def change(self, app_id: str, body: AppPatch) -> App:
        """Change name, profile, limits, weight, contracts, access; suspend or resume. Keys of a
        suspended app do not work, and its programs end.
        """
        self._check_weight(body.weight)
        app = self._get(app_id, lock=True, live=True)
        before = audited(self._session, app)
        if body.name is not None and body.name != app.name:
            self._check_name(body.name)
            app.name = body.name
        if body.profile is not None:
            app.stages.clear()
            self._session.flush()  # deletes the old stages before new ones use their keys
            _set_profile(app, body.profile.profile(self._default_idle_timeout_s))
            self._declared(app)
        if body.limits is not None:
            for name in body.limits.model_fields_set:
                setattr(app.limits, name, getattr(body.limits, name))
        if body.weight is not None:
            app.weight = body.weight
        if body.suspended is not None and body.suspended != (app.suspended_at is not None):
            app.suspended_at = utc_now() if body.suspended else None
            self._forget_keys(app_id)
        self._session.flush()
        self._notify_control(app)
        self._set_contracts(app, body)
        self._set_access(app, body)
        self._audit("app.change", app, before)
        if body.suspended:
            self._stop_programs(app_id, "its app is suspended")
        return app

    def delete(self, app_id: str) -> App:
        """Mark an app as deleted: its keys and programs end, its name is free. Idempotent."""
        app = self._get(app_id, lock=True)
        if app.deleted_at is None:
            before = audited(self._session, app)
            app.deleted_at = utc_now()
            self._session.flush()
            self._audit("app.delete", app, before)
            self._stop_programs(app_id, "its app was deleted")
            self._forget_keys(app_id)
        return app

    def restore(self, app_id: str) -> App:
        """Restore a deleted app unchanged. Raises ConflictError if its name is taken."""
        app = self._get(app_id, lock=True)
        if app.deleted_at is not None:
            self._check_capacity(new=False)
            self._check_name(app.name)
            before = audited(self._session, app)
            app.deleted_at = None
            self._session.flush()
            self._audit("app.restore", app, before)
            self._forget_keys(app_id)
        return app

    def keys_of(self, app_id: str, *, change: bool = False, live: bool = False) -> KeyRing:
        """Return an app's keys; ``change`` locks out other writers."""
        return self._key_ring(self._get(app_id, lock=change, live=live))

    # --- parts ------------------------------------------------------------------------------------

    def _get(self, app_id: str, *, lock: bool = False, live: bool = False) -> App:
        app = repository.get(self._session, self._tenant_id, app_id, lock=lock)
        if app is None:
            raise NotFoundError("there is no such app", param="app_id")
        if live and app.deleted_at is not None:
            raise ConflictError("the app is deleted; restore it first", code="deleted")
        return app

    def _check_weight(self, weight: float | None) -> None:
        if weight is not None and self._principal.scope != "admin":
            raise PermissionDeniedError("an app's weight needs an admin key", param="weight")

    def _check_name(self, name: str) -> None:
        app = repository.by_name(self._session, self._tenant_id, name)
        if app is not None:
            raise ConflictError(
                f"app {app.id} of the tenant has this name; choose another name, or create a key of"
                f" that app with POST /v1/apps/{app.id}/keys",
                param="name",
            )

    def _check_capacity(self, *, new: bool) -> None:
        there = repository.count(self._session, self._tenant_id, deleted=False)
        if there >= MAX_APPS:
            raise ConflictError(f"a tenant has at most {MAX_APPS} apps", code="too_many_apps")
        if new:
            deleted = repository.count(self._session, self._tenant_id, deleted=True)
            if there + deleted >= MAX_ROWS:
                raise ConflictError(
                    f"a tenant has at most {MAX_ROWS} apps, including deleted ones until they are"
                    " purged",
                    code="too_many_apps",
                )

    def _set_contracts(self, app: App, body: AppCreate | AppPatch) -> None:
        for name, scope in (("contract", "app"), ("user_contract", "app_user")):
            if name in body.model_fields_set:
                holder = Holder(app.tenant_id, scope, app.id)  # type: ignore[arg-type]  # both are scopes
                contracts.change(
                    self._session, self._control, holder, getattr(body, name), param=name
                )

    def _set_access(self, app: App, body: AppCreate | AppPatch) -> None:
        """Set what the cache of keys has a copy of: user headers, origins and rules of runs."""
        changed = body.model_fields_set & {"user_headers", "cors_origins", "run_rules"}
        if "cors_origins" in changed and body.cors_origins:
            total = len(body.cors_origins) + repository.origins_of_others(self._session, app)
            if total > MAX_TENANT_ORIGINS:
                raise ConflictError(
                    f"the tenant's apps would have {total} origins; allowed: {MAX_TENANT_ORIGINS}",
                    param="cors_origins",
                    code="too_many_origins",
                )
        for name in changed:
            setattr(app, name, getattr(body, name))
        if changed:
            self._session.flush()
            self._forget_keys(app.id)

    def _key_ring(self, app: App) -> KeyRing:
        owner = keys.KeyOwner(app.tenant_id, app.id)
        return KeyRing(self._session, self._principal, self._authenticator, owner)

    def _declared(self, app: App) -> None:
        """Store the declared profile; a learned one is unchanged."""
        app.profile_looked_at = None
        before = latest(self._session, [app]).get(app.id)
        if before is not None and before.source != "declared":
            return
        held = replace(in_force(app, None, self._learning), since_s=utc_now().timestamp())
        add_version(self._session, app, held, source="declared", author=self._principal.actor)

    def _notify_control(self, app: App) -> None:
        profile = profiles_in_force(self._session, [app], self._learning)[app.id]
        event = app_changed(app, profile)
        after_commit(self._session, lambda: self._control.post(event))

    def _stop_programs(self, app_id: str, reason: str) -> None:
        after_commit(self._session, lambda: self._programs.cancel_of(reason, app_id=app_id))

    def _forget_keys(self, app_id: str) -> None:
        after_commit(self._session, lambda: self._authenticator.forget(app_id=app_id))

    def _audit(self, action: str, app: App, before: dict[str, Any] | None) -> None:
        audit.record(
            self._session,
            self._principal,
            action,
            app.id,
            tenant_id=self._tenant_id,
            before=before,
            after=audited(self._session, app),
        )


def _set_profile(app: App, profile: AppProfile) -> None:
    app.calls_per_interaction = profile.calls_per_interaction
    app.idle_timeout_s = profile.idle_timeout_s
    app.stages = [
        TokenProfile(
            stage=number,
            input_tokens=stage.input_tokens,
            system_tokens=stage.system_tokens,
            output_tokens=stage.output_tokens,
        )
        for number, stage in enumerate(profile.stages, start=1)
    ]


def apps_of(parts: TenancyParts, session: Session, principal: Principal) -> Apps:
    """Return the apps of the principal's tenant."""
    settings = parts.settings
    return Apps(
        session,
        principal,
        parts.authenticator,
        parts.control,
        parts.programs,
        default_idle_timeout_s=settings.interaction_idle_timeout_s,
        retention=timedelta(days=settings.ledger_retention_days),
        learning=settings.learning_options,
    )


def all_apps_page(
    session: Session, query: NamedTenantPaging, settings: TenancySettings
) -> Page[AppOut]:
    """Return the apps of one or all tenants, oldest first; with ``deleted`` the deleted ones."""
    found = repository.page(session, query.tenant, query)
    return Page(
        items=describe_all(session, found, timedelta(days=settings.ledger_retention_days)),
        total=repository.count(session, query.tenant, deleted=query.deleted, name=query.name),
        limit=query.limit,
        offset=query.offset,
    )
