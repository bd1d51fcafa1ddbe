"""Queries on the profiles of an app, past and in force, and on the calls for learning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Select, and_, delete, or_, select
from sqlalchemy.orm import Session, selectinload

from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import (
    InForce,
    LearningOptions,
    as_declared,
)
from fairserve.interactions.profiles.profile_statistics import CallSeen, RunSeen
from fairserve.interactions.tracking.run_end import ENDED_BY_ITSELF
from fairserve.platform.db.identity import App
from fairserve.platform.db.ledger import LedgerCall, LedgerInteraction
from fairserve.platform.db.profiles import ProfileSource, ProfileVersion

KEPT_VERSIONS = 1000
"""Maximum number of stored versions of one app; the oldest are deleted."""


def declared_profile(app: App) -> AppProfile:
    """Return the profile that its owner declared."""
    names = ("input_tokens", "system_tokens", "output_tokens")
    return AppProfile.from_plain(
        {
            "stages": [{name: getattr(stage, name) for name in names} for stage in app.stages],
            "calls_per_interaction": app.calls_per_interaction,
            "idle_timeout_s": app.idle_timeout_s,
        }
    )


def in_force(app: App, version: ProfileVersion | None, options: LearningOptions | None) -> InForce:
    """Return the profile in force; without ``options`` this is the declared one."""
    declared = declared_profile(app)
    pinned = app.profile_mode == "pinned" and version is not None
    if version is None or not (pinned or (options is not None and app.profile_mode == "learned")):
        since_s = app.created_at.timestamp()
        if options is None or app.profile_mode == "declared":
            return InForce(declared, since_s, reason="declared")
        return as_declared(declared, since_s, options)
    profile = AppProfile.from_plain(version.profile)
    return InForce(
        profile=replace(profile, idle_timeout_s=declared.idle_timeout_s),
        since_s=version.since.timestamp(),
        learned_stages=version.learned_stages,
        calls_learned=version.calls_learned,
        reason=version.reason,
    )


def profiles_in_force(
    session: Session, apps: Sequence[App], options: LearningOptions | None
) -> dict[str, AppProfile]:
    """Return the profiles in force, by app."""
    versions = latest(session, apps)
    return {app.id: in_force(app, versions.get(app.id), options).profile for app in apps}


def sources(
    session: Session, app_ids: Collection[str], options: LearningOptions | None
) -> dict[str, ProfileSource]:
    """Return the source of the profile in force, by app."""
    found = select(App).where(App.id.in_(app_ids)).options(selectinload(App.stages))
    apps = session.scalars(found).all()
    versions = latest(session, apps)
    return {
        app.id: "pinned"
        if app.profile_mode == "pinned"
        else in_force(app, versions.get(app.id), options).source
        for app in apps
    }


def latest(session: Session, apps: Collection[App]) -> Mapping[str, ProfileVersion]:
    """Return the highest version of each app that has one."""
    ids = [app.id for app in apps if app.profile_version]
    if not ids:
        return {}
    found = session.scalars(
        select(ProfileVersion)
        .join(
            App,
            and_(App.id == ProfileVersion.app_id, App.profile_version == ProfileVersion.version),
        )
        .where(App.id.in_(ids))
    )
    return {version.app_id: version for version in found}


def history(app_id: str) -> Select[ProfileVersion]:
    """Return the statement of an app's versions, newest first."""
    of_app = select(ProfileVersion).where(ProfileVersion.app_id == app_id)
    return of_app.order_by(ProfileVersion.version.desc())


def add_version(
    session: Session, app: App, held: InForce, *, source: ProfileSource, author: str
) -> ProfileVersion:
    """Put a profile in force. The caller has locked the app's row, and commits."""
    version = ProfileVersion(
        app_id=app.id,
        version=app.profile_version + 1,
        since=datetime.fromtimestamp(held.since_s, UTC),
        source=source,
        profile=held.profile.to_plain(),
        learned_stages=held.learned_stages,
        calls_learned=held.calls_learned,
        reason=held.reason,
        author=author,
    )
    session.add(version)
    app.profile_version = version.version
    session.flush()
    session.execute(
        delete(ProfileVersion).where(
            ProfileVersion.app_id == app.id,
            ProfileVersion.version <= version.version - KEPT_VERSIONS,
        )
    )
    return version


def seen(
    session: Session, app_id: str, now: datetime, options: LearningOptions
) -> tuple[list[CallSeen], list[RunSeen]]:
    """Return an app's most recent calls within the window, and their interactions.

    Interactions that began before the oldest of these calls do not count as ended, because some of
    their calls are missing.
    """
    begin = now - timedelta(seconds=options.window_s)
    rows = session.execute(
        select(
            LedgerCall.interaction_id,
            LedgerCall.stage,
            LedgerCall.agent,
            LedgerCall.input_tokens,
            LedgerCall.system_tokens,
            LedgerCall.output_tokens,
            LedgerCall.cached_tokens,
            LedgerCall.accepted_at,
        )
        .where(
            LedgerCall.app_id == app_id,
            LedgerCall.accepted_at >= begin,
            LedgerCall.charged,
            or_(
                LedgerCall.input_tokens > 0,
                LedgerCall.system_tokens > 0,
                LedgerCall.output_tokens > 0,
            ),
        )
        .order_by(LedgerCall.accepted_at.desc(), LedgerCall.call_id)
        .limit(options.max_calls)
    ).all()
    calls: list[CallSeen] = []
    made: dict[str, RunSeen] = {}
    for run_id, stage, agent, inputs, system, outputs, cached, accepted_at in rows:
        age_s = (now - accepted_at).total_seconds()
        call = CallSeen(stage, agent, inputs, system, outputs, age_s, cached)
        calls.append(call)
        before = made.get(run_id, RunSeen(0, ended=False, age_s=age_s))
        made[run_id] = before._replace(calls=before.calls + 1, tokens=before.tokens + call.tokens)
    oldest = rows[-1].accepted_at if rows else now
    ended = session.execute(
        select(LedgerInteraction.id, LedgerInteraction.ended_at).where(
            LedgerInteraction.app_id == app_id,
            LedgerInteraction.opened_at >= oldest,
            LedgerInteraction.state.in_(ENDED_BY_ITSELF),
        )
    )
    for run_id, ended_at in ended:
        found = made.get(run_id)
        if found is not None:
            age_s = (now - ended_at).total_seconds()
            made[run_id] = found._replace(ended=True, age_s=age_s)
    return calls, list(made.values())
