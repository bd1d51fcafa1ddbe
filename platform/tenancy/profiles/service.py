"""Show an app's profile, and choose the one in force."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fairserve.interactions.profiles.profile_learning import InForce, LearningOptions
from fairserve.interactions.profiles.profile_statistics import figures_of
from fairserve.platform.base.errors import ConflictError, NotFoundError
from fairserve.platform.db import audit
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.identity import App
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.db.profiles import ProfileSource
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import Page, Paging
from fairserve.platform.db.session import after_commit
from fairserve.platform.tenancy.apps import repository as apps
from fairserve.platform.tenancy.apps.control_events import app_changed
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.platform.tenancy.apps.schemas import ProfileOut
from fairserve.platform.tenancy.auth import Principal
from fairserve.platform.tenancy.profiles import repository
from fairserve.platform.tenancy.profiles.schemas import (
    AppProfileOut,
    PredictionOut,
    ProfileInForce,
    ProfileModeBody,
    ProfileVersionOut,
    Seen,
)

_COMPARED_CALLS = 1000
"""Number of recent calls over which the prediction error is computed."""


def describe(session: Session, app: App, options: LearningOptions | None) -> AppProfileOut:
    """Return the profile in force, the declared one, and statistics of the recent ledger rows."""
    shown = options or LearningOptions()
    calls, runs = repository.seen(session, app.id, utc_now(), shown)
    figures = figures_of(calls, runs, min_samples=shown.min_samples, half_life_s=shown.half_life_s)
    return AppProfileOut(
        app_id=app.id,
        mode=app.profile_mode,
        in_force=_in_force(session, app, options),
        declared=ProfileOut.model_validate(repository.declared_profile(app), from_attributes=True),
        seen=Seen.model_validate(figures, from_attributes=True),
        prediction=_prediction(session, app.id),
    )


def set_mode(
    session: Session,
    control: ControlInbox,
    principal: Principal,
    app: App,
    body: ProfileModeBody,
    options: LearningOptions | None,
) -> None:
    """Set the profile in force, from the next call on. The app's row is locked."""
    before = _audited(session, app, options)
    held = repository.in_force(app, repository.latest(session, [app]).get(app.id), options)
    app.profile_mode = body.mode
    app.profile_looked_at = None
    by = f"by {principal.actor}"
    now_s = utc_now().timestamp()
    if body.mode == "pinned":
        profile = held.profile
        if body.profile is not None:
            profile = body.profile.profile(app.idle_timeout_s)
        pinned = InForce(profile, now_s, reason=f"pinned {by}")
        _keep(session, app, pinned, "pinned", principal)
    elif body.mode == "declared":
        declared = repository.declared_profile(app)
        _keep(session, app, InForce(declared, now_s, reason=f"set {by}"), "declared", principal)
    profile = repository.profiles_in_force(session, [app], options)[app.id]
    event = app_changed(app, profile)
    after_commit(session, lambda: control.post(event))
    audit.record(
        session,
        principal,
        "app.profile",
        app.id,
        tenant_id=app.tenant_id,
        before=before,
        after=_audited(session, app, options),
    )


def _keep(
    session: Session, app: App, held: InForce, source: ProfileSource, principal: Principal
) -> None:
    repository.add_version(session, app, held, source=source, author=principal.actor)


def _in_force(session: Session, app: App, options: LearningOptions | None) -> ProfileVersionOut:
    row = repository.latest(session, [app]).get(app.id)
    held = repository.in_force(app, row, options)
    if row is not None and held.reason == row.reason:
        return ProfileVersionOut.model_validate(row, from_attributes=True)
    return ProfileVersionOut(
        version=0 if row is None else row.version,
        since=datetime.fromtimestamp(held.since_s, UTC),
        source=held.source,
        reason=held.reason,
        author="system",
        profile=ProfileInForce.model_validate(held.profile, from_attributes=True),
    )


def _audited(session: Session, app: App, options: LearningOptions | None) -> dict[str, object]:
    shown = _in_force(session, app, options)
    return {"mode": app.profile_mode, **shown.model_dump(mode="json")}


def _prediction(session: Session, app_id: str) -> PredictionOut | None:
    predicted_output_tokens = func.coalesce(LedgerCall.expected_output_tokens, 0)
    rows = session.execute(
        select(predicted_output_tokens, LedgerCall.output_tokens)
        .where(
            LedgerCall.app_id == app_id,
            LedgerCall.outcome == "completed",
            LedgerCall.expected_output_tokens > 0,
        )
        .order_by(LedgerCall.accepted_at.desc())
        .limit(_COMPARED_CALLS)
    ).all()
    if not rows:
        return None
    number = len(rows)
    return PredictionOut(
        calls=number,
        mean_output_tokens=sum(made for _, made in rows) / number,
        mean_error_tokens=sum(predicted - made for predicted, made in rows) / number,
        mean_absolute_error_tokens=sum(abs(predicted - made) for predicted, made in rows) / number,
        within_half=sum(abs(made - predicted) <= predicted / 2 for predicted, made in rows)
        / number,
    )


def app_of(session: Session, tenant_id: str | None, app_id: str) -> App:
    """Return an app of a tenant. Raises NotFoundError."""
    assert tenant_id is not None
    app = apps.get(session, tenant_id, app_id)
    if app is None:
        raise NotFoundError("there is no such app", param="app_id")
    return app


def history_page(session: Session, app: App, paging: Paging) -> Page[ProfileVersionOut]:
    """Return the profiles that were in force, newest first, with the reason of each change."""
    rows, total = read_page(session, repository.history(app.id), paging)
    items = [ProfileVersionOut.model_validate(row, from_attributes=True) for row in rows]
    return Page.of(items, total, paging)


def change_mode(
    session: Session,
    control: ControlInbox,
    principal: Principal,
    app_id: str,
    body: ProfileModeBody,
    options: LearningOptions | None,
) -> AppProfileOut:
    """Choose which profile of an app is in force. Raises NotFoundError or ConflictError."""
    app = apps.locked(session, app_id)
    if app is None:
        raise NotFoundError("there is no such app", param="app_id")
    if app.deleted_at is not None:
        raise ConflictError("the app is deleted; restore it first", code="deleted")
    set_mode(session, control, principal, app, body, options)
    return describe(session, app, options)
