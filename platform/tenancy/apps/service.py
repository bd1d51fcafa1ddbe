"""Operations on apps: register, change, suspend, delete, restore; and their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Select
from sqlalchemy.orm import Session

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.platform.base.errors import ConflictError, NotFoundError, PermissionDeniedError
from fairserve.platform.db import keys
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import App, AppLimits, TokenProfile
from fairserve.platform.db.rows import count, read_page
from fairserve.platform.db.schemas import NamedPaging, NamedTenantPaging, Page
from fairserve.platform.tenancy.apps import repository
from fairserve.platform.tenancy.apps.control_events import app_changed
from fairserve.platform.tenancy.apps.origins import MAX_TENANT_ORIGINS
from fairserve.platform.tenancy.apps.schemas import AppCreate, AppOut, AppPatch, AppSettings
from fairserve.platform.tenancy.apps.view import describe_all
from fairserve.platform.tenancy.auth import Principal, check_manager
from fairserve.platform.tenancy.owned import OwnedRows
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


class Apps(OwnedRows[App, AppOut]):
    """The apps of one tenant within one request."""

    word = "app"

    def __init__(self, parts: TenancyParts, session: Session, principal: Principal) -> None:
        super().__init__(parts, session, principal)
        assert principal.tenant_id is not None
        self._tenant_id = principal.tenant_id
        if not repository.tenant_exists(session, self._tenant_id):
            raise NotFoundError("there is no such tenant", param="tenant")

    def create(self, body: AppCreate) -> tuple[App, keys.IssuedKey]:
        """Register an app with a first key."""
        self._check_weights(body)
        check_manager(self._principal, body)
        self._check_capacity(new=True)
        self._check_name(body.name)
        app = App(
            id=new_id("app"),
            tenant_id=self._tenant_id,
            name=body.name,
            weight=1.0 if body.weight is None else body.weight,
            priority_weight=body.priority_weight,
            managed_by=body.managed_by,
            created_at=utc_now(),
            limits=AppLimits(**body.limits.model_dump()),
        )
        _set_profile(app, body.profile.profile(self._settings.interaction_idle_timeout_s))
        self._session.add(app)
        self._session.flush()
        self._declared(app)
        self._notify_control(app)
        self._set_contracts(app, body)
        self._set_access(app, body)
        key = self._key_ring(app).issue()
        self._audit("create", app, None)
        return app, key

    def change(self, app_id: str, body: AppPatch) -> App:
        """Change name, profile, limits, weights, contracts, access; suspend or resume. Keys of a
        suspended app do not work, and its programs end.
        """
        self._check_weights(body)
        check_manager(self._principal, body)
        app = self.get(app_id, lock=True, live=True)
        before = self._audited(app)
        if body.name is not None and body.name != app.name:
            self._check_name(body.name)
            app.name = body.name
        if body.profile is not None:
            app.stages.clear()
            self._session.flush()  # deletes the old stages before new ones use their keys
            _set_profile(app, body.profile.profile(self._settings.interaction_idle_timeout_s))
            self._declared(app)
        if body.limits is not None:
            for name in body.limits.model_fields_set:
                setattr(app.limits, name, getattr(body.limits, name))
        if body.weight is not None:
            app.weight = body.weight
        for name in body.model_fields_set & {"priority_weight", "managed_by"}:
            setattr(app, name, getattr(body, name))
        if self._set_suspended(app, body.suspended):
            self._forget_keys(app)
        self._session.flush()
        self._notify_control(app)
        self._set_contracts(app, body)
        self._set_access(app, body)
        self._audit("change", app, before)
        if body.suspended:
            self._stop_programs(app, "is suspended")
        return app

    def describe_all(self, rows: Sequence[App]) -> list[AppOut]:
        """Return the API's view of apps."""
        return describe_all(self._session, rows, self._retention)

    # --- parts ------------------------------------------------------------------------------------

    def _find(self, row_id: str, *, lock: bool) -> App | None:
        return repository.get(self._session, self._tenant_id, row_id, lock=lock)

    def _listed(self, query: NamedPaging) -> Select[App]:
        return repository.listed(self._tenant_id, query)

    def _key_owner(self, row: App) -> keys.KeyOwner:
        return keys.KeyOwner(row.tenant_id, row.id)

    def _check_weights(self, body: AppSettings) -> None:
        given = {"weight"} if body.weight is not None else set()
        given |= body.model_fields_set & {"priority_weight"}  # null takes the grant
        if given and self._principal.scope != "admin":
            name = min(given)
            raise PermissionDeniedError(f"an app's {name} needs an admin key", param=name)

    def _check_name(self, name: str) -> None:
        app = repository.by_name(self._session, self._tenant_id, name)
        if app is not None:
            raise self._name_taken(app, f"app {app.id} of the tenant", "/v1/apps")

    def _check_capacity(self, *, new: bool) -> None:
        there = count(self._session, self._listed(NamedPaging()))
        if there >= MAX_APPS:
            raise ConflictError(f"a tenant has at most {MAX_APPS} apps", code="too_many_apps")
        if new:
            deleted = count(self._session, self._listed(NamedPaging(deleted=True)))
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
            self._forget_keys(app)

    def _declared(self, app: App) -> None:
        """Store the declared profile; a learned one is unchanged."""
        app.profile_looked_at = None
        before = latest(self._session, [app]).get(app.id)
        if before is not None and before.source != "declared":
            return
        held = replace(
            in_force(app, None, self._settings.learning_options), since_s=utc_now().timestamp()
        )
        add_version(self._session, app, held, source="declared", author=self._principal.actor)

    def _notify_control(self, app: App) -> None:
        profile = profiles_in_force(self._session, [app], self._settings.learning_options)[app.id]
        self._post(app_changed(app, profile))


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


def all_apps_page(
    session: Session, query: NamedTenantPaging, settings: TenancySettings
) -> Page[AppOut]:
    """Return the apps of one or all tenants, oldest first; with ``deleted`` the deleted ones."""
    rows, total = read_page(session, repository.listed(query.tenant, query), query)
    kept = timedelta(days=settings.ledger_retention_days)
    return Page.of(describe_all(session, rows, kept), total, query)
