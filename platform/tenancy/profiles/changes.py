"""Send profiles that another process changed, such as a background job, to control.

The database is the channel: the transaction that stores a profile raises the app's ``profile_version``,
and this module polls for it. An event that arrives after those of a later change, or of the same one, is
ignored. Cost of a poll: one read of two columns of all apps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import selectinload

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.threads import to_its_end
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App
from fairserve.platform.tenancy.apps.control_events import app_changed
from fairserve.platform.tenancy.profiles.repository import profiles_in_force
from fairserve.scheduling.events import AppChanged

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Seconds between two polls."""
_APPS = 500
"""Number of apps per read."""


class ProfileChanges:
    """Sends changed profiles to control."""

    def __init__(
        self,
        sessions: SessionFactory,
        post: Callable[[AppChanged], None],
        learning: LearningOptions | None,
        known: Mapping[str, int],
    ) -> None:
        """``post`` passes an event to control.

        ``known`` is the profile version of each app that control has.
        """
        self._sessions, self._post, self._learning = sessions, post, learning
        self._known = known

    async def run(self) -> None:
        """Poll until the task is cancelled; retry while the database is down."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                events = await to_its_end(self.poll)
            except SQLAlchemyError as error:
                logger.warning(
                    "cannot poll for changed profiles: %s; retrying", type(error).__name__
                )
                continue
            for event in events:
                self._post(event)

    def poll(self) -> list[AppChanged]:
        """Return an event for each app whose profile changed since the last poll."""
        versions = profile_versions(self._sessions)
        changed = sorted(
            app_id for app_id, version in versions.items() if self._known.get(app_id, 0) != version
        )
        events: list[AppChanged] = []
        for begin in range(0, len(changed), _APPS):
            with self._sessions() as session:
                apps = (
                    read_only(session)
                    .scalars(
                        select(App)
                        .where(App.id.in_(changed[begin : begin + _APPS]))
                        .options(selectinload(App.stages), selectinload(App.limits))
                        .order_by(App.id)
                    )
                    .all()
                )
                profiles = profiles_in_force(session, apps, self._learning)
                events += [
                    replace(app_changed(app, profiles[app.id]), read_later=True) for app in apps
                ]
        self._known = versions
        return events


def profile_versions(sessions: SessionFactory) -> dict[str, int]:
    """Return the version of each app's profile."""
    with sessions() as session:
        rows = read_only(session).execute(select(App.id, App.profile_version)).all()
    return {row.id: row.profile_version for row in rows}
