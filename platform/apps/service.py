"""What can be done with apps: register, change, delete, and give them keys.

Functions take the request's session and leave the commit to it. What they change is audited, and
reaches control and the key cache after the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from fairserve.interactions.profile import AppProfile
from fairserve.platform.apps import repository
from fairserve.platform.apps.control_events import (
    ControlInbox,
    ProgramInbox,
    app_changed,
    profile_of,
)
from fairserve.platform.apps.schemas import (
    AppCreate,
    AppOut,
    AppPatch,
    LimitsOut,
    ProfileOut,
    StageOut,
)
from fairserve.platform.auth import Authenticator, Principal
from fairserve.platform.db import audit, keys
from fairserve.platform.db.base import new_id, utc_now
from fairserve.platform.db.identity import ApiKey, App, AppLimits, TokenProfile
from fairserve.platform.db.session import after_commit
from fairserve.platform.errors import ConflictError, InvalidRequestError, NotFoundError

MAX_APPS = 1000
"""Apps of one tenant."""
MAX_KEYS = 100
"""Valid keys of one app."""


class Apps:
    """The apps of one tenant, as seen by one request."""

    def __init__(
        self,
        session: Session,
        principal: Principal,
        authenticator: Authenticator,
        control: ControlInbox,
        programs: ProgramInbox,
        default_idle_timeout_s: float,
    ) -> None:
        assert principal.tenant_id is not None
        self._session = session
        self._principal = principal
        self._tenant_id = principal.tenant_id
        self._authenticator = authenticator
        self._control = control
        self._programs = programs
        self._default_idle_timeout_s = default_idle_timeout_s
        if not repository.tenant_exists(session, self._tenant_id):
            raise NotFoundError("there is no such tenant", param="tenant")

    def get(self, app_id: str, *, lock: bool = False) -> App:
        """One app. Raises NotFoundError, also for another tenant's."""
        app = repository.get(self._session, self._tenant_id, app_id, lock=lock)
        if app is None:
            raise NotFoundError("there is no such app", param="app_id")
        return app

    def page(self, limit: int, offset: int) -> tuple[Sequence[App], int]:
        """A part of the tenant's apps, and how many there are."""
        apps = repository.page(self._session, self._tenant_id, limit=limit, offset=offset)
        return apps, repository.count(self._session, self._tenant_id)

    def create(self, body: AppCreate) -> tuple[App, keys.IssuedKey]:
        """Register an app with its first key."""
        if repository.count(self._session, self._tenant_id) >= MAX_APPS:
            raise ConflictError(f"a tenant has at most {MAX_APPS} apps", code="too_many_apps")
        self._check_name(body.name)
        app = App(
            id=new_id("app"),
            tenant_id=self._tenant_id,
            name=body.name,
            created_at=utc_now(),
            limits=AppLimits(user_rpm=body.limits.user_rpm, app_rpm=body.limits.app_rpm),
        )
        _set_profile(app, body.profile.profile(self._default_idle_timeout_s))
        self._session.add(app)
        self._session.flush()
        key = self._issue(app, None)
        self._changed(app, "app.create", None)
        return app, key

    def change(self, app_id: str, body: AppPatch) -> App:
        """Change name, profile or limits."""
        app = self.get(app_id, lock=True)
        before = _audited(app)
        if body.name is not None and body.name != app.name:
            self._check_name(body.name)
            app.name = body.name
        if body.profile is not None:
            app.stages.clear()
            self._session.flush()  # the old stages go before new ones take their keys
            _set_profile(app, body.profile.profile(self._default_idle_timeout_s))
        if body.limits is not None:
            for name in body.limits.model_fields_set:
                setattr(app.limits, name, getattr(body.limits, name))
        self._session.flush()
        self._changed(app, "app.change", before)
        return app

    def delete(self, app_id: str) -> None:
        """Delete an app with its keys and programs. Its ledger stays until its retention."""
        app = self.get(app_id, lock=True)
        self._audit("app.delete", app.id, before=_audited(app))
        self._session.delete(app)
        after_commit(self._session, lambda: self._authenticator.forget(app_id=app_id))
        after_commit(
            self._session,
            lambda: self._programs.cancel_of("its app was deleted", app_id=app_id),
        )

    def add_key(self, app_id: str, expires_at: datetime | None) -> keys.IssuedKey:
        """A further key of an app."""
        app = self.get(app_id, lock=True)
        if expires_at is not None and expires_at <= utc_now():
            raise InvalidRequestError("expires_at is in the past", param="expires_at")
        if keys.count_valid_of_app(self._session, app.id) >= MAX_KEYS:
            raise ConflictError(f"an app has at most {MAX_KEYS} valid keys", code="too_many_keys")
        return self._issue(app, expires_at)

    def list_keys(self, app_id: str, limit: int, offset: int) -> tuple[Sequence[ApiKey], int]:
        """A part of an app's keys, and how many there are."""
        app = self.get(app_id)
        rows = keys.of_app(self._session, app.id, limit=limit, offset=offset)
        return rows, keys.count_of_app(self._session, app.id)

    def revoke_key(self, app_id: str, key_id: str) -> ApiKey:
        """Revoke a key; doing it again changes nothing."""
        app = self.get(app_id, lock=True)
        row = self._session.get(ApiKey, key_id)
        if row is None or row.app_id != app.id:
            raise NotFoundError("there is no such key", param="key_id")
        if row.revoked_at is None:
            row.revoked_at = utc_now()
            self._audit("key.revoke", row.id, before={"prefix": row.prefix})
            after_commit(self._session, lambda: self._authenticator.forget(key_id=key_id))
        return row

    def rotate_keys(self, app_id: str, grace_s: float) -> keys.IssuedKey:
        """A new key; the others end now, or after ``grace_s``."""
        app = self.get(app_id, lock=True)
        key = self._issue(app, None)
        now = utc_now()
        ended = keys.end_others(self._session, key.row, now + timedelta(seconds=grace_s), now=now)
        self._audit("key.rotate", app.id, before={"ended": ended}, after={"key": key.row.id})
        after_commit(self._session, lambda: self._authenticator.forget(app_id=app_id))
        return key

    def _check_name(self, name: str) -> None:
        if repository.by_name(self._session, self._tenant_id, name) is not None:
            raise ConflictError("the tenant has an app of this name", param="name")

    def _issue(self, app: App, expires_at: datetime | None) -> keys.IssuedKey:
        key = keys.issue(
            self._session,
            self._authenticator.hasher,
            "app",
            tenant_id=app.tenant_id,
            app_id=app.id,
            expires_at=expires_at,
        )
        self._audit("key.create", key.row.id, after={"app": app.id, "prefix": key.row.prefix})
        return key

    def _changed(self, app: App, action: str, before: dict[str, Any] | None) -> None:
        self._audit(action, app.id, before=before, after=_audited(app))
        event = app_changed(app)
        after_commit(self._session, lambda: self._control.post(event))

    def _audit(
        self,
        action: str,
        target: str,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        audit.record(
            self._session,
            self._principal,
            action,
            target,
            tenant_id=self._tenant_id,
            before=before,
            after=after,
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


def _audited(app: App) -> dict[str, Any]:
    return describe(app).model_dump(mode="json", exclude={"warnings", "id", "tenant_id"})


def warnings_of(app: App) -> list[str]:
    """What is allowed and will probably surprise: limits below two runs' calls."""
    calls = app.calls_per_interaction
    return [
        f"{name} is {limit}, below twice the {calls:g} calls of a run: limits count every call,"
        " so a limit belongs at several times the calls per run"
        for name in ("user_rpm", "app_rpm")
        if (limit := getattr(app.limits, name)) is not None and limit < 2 * calls
    ]


def describe(app: App) -> AppOut:
    """The app as the API shows it."""
    profile = profile_of(app)
    return AppOut(
        id=app.id,
        tenant_id=app.tenant_id,
        name=app.name,
        profile=ProfileOut(
            stages=[
                StageOut(
                    input_tokens=stage.input_tokens,
                    system_tokens=stage.system_tokens,
                    output_tokens=stage.output_tokens,
                )
                for stage in profile.stages
            ],
            calls_per_interaction=profile.calls_per_interaction,
            idle_timeout_s=profile.idle_timeout_s,
        ),
        limits=LimitsOut(user_rpm=app.limits.user_rpm, app_rpm=app.limits.app_rpm),
        created_at=app.created_at,
        warnings=warnings_of(app),
    )
