"""The background job that learns profiles from the ledger.

An app in use is evaluated at every pass until its profile is learned, then every ``STEADY``. One
transaction computes the profile from the ledger's rows and the previous version, and stores it if it
changed. An interrupted pass therefore has no effect on its current app, and a repeated pass changes
nothing. A lock on the app's row excludes passes of other processes.

Cost per due app: an indexed read of at most ``max_calls`` ledger rows, and about ten milliseconds of
numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import exists, or_, select
from sqlalchemy.orm import selectinload

from fairserve.interactions.profiles.profile_learning import LearningOptions, learn
from fairserve.interactions.profiles.profile_statistics import figures_of
from fairserve.platform.db.base import utc_now
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App
from fairserve.platform.db.ledger import LedgerCall
from fairserve.platform.tenancy.profiles.repository import (
    add_version,
    declared_profile,
    in_force,
    latest,
    seen,
)

STEADY = timedelta(minutes=10)
LATE = timedelta(minutes=15)
"""Maximum delay of a ledger row."""


def learn_profiles(
    sessions: SessionFactory,
    options: LearningOptions,
    *,
    stopping: Callable[[], bool] = lambda: False,
    now: Callable[[], datetime] = utc_now,
) -> int:
    """Evaluate every app that is due; return the number of changed profiles."""
    changed = 0
    for app_id in _due(sessions, now()):
        if stopping():
            break
        changed += _learn_one(sessions, app_id, options, now())
    return changed


def _due(sessions: SessionFactory, now: datetime) -> list[str]:
    """Return the apps to evaluate, least recently evaluated first."""
    recently = exists().where(
        LedgerCall.app_id == App.id, LedgerCall.accepted_at >= now - LATE - STEADY
    )
    looked_at = App.profile_looked_at
    with sessions() as session:
        apps = read_only(session).scalars(
            select(App)
            .where(App.profile_mode == "learned", App.deleted_at.is_(None))
            .where(or_(looked_at.is_(None), recently))
            .order_by(looked_at, App.id)
        )
        found = list(apps)
        versions = latest(session, found)
        steady = {app_id for app_id, version in versions.items() if version.source == "learned"}
    return [
        app.id
        for app in found
        if app.id not in steady
        or app.profile_looked_at is None
        or not now - STEADY < app.profile_looked_at <= now  # later: before the clock went back
    ]


def _learn_one(
    sessions: SessionFactory, app_id: str, options: LearningOptions, now: datetime
) -> bool:
    with sessions() as session:
        calls, runs = seen(read_only(session), app_id, now, options)
    figures = figures_of(
        calls, runs, min_samples=options.min_samples, half_life_s=options.half_life_s
    )
    with sessions.begin() as session:
        app = session.scalars(
            select(App)
            .where(App.id == app_id)
            .options(selectinload(App.stages))
            .with_for_update(of=App, skip_locked=True)
        ).one_or_none()
        if app is None or app.profile_mode != "learned":
            return False
        app.profile_looked_at = now
        version = latest(session, [app]).get(app_id)
        before = in_force(app, version, options)
        held = learn(declared_profile(app), before, figures, now.timestamp(), options)
        if held is before:
            return False
        add_version(session, app, held, source=held.source, author="system")
        return True
