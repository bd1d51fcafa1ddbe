"""What control must know of the database: apps' profiles and limits, users' settings.

:func:`load_control_events` at start-up, the others after each change.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from fairserve.interactions.profile import AppProfile, StageProfile
from fairserve.platform.db.engine import read_only
from fairserve.platform.db.identity import App, EndUser
from fairserve.scheduling.events import AppChanged, Event, UserChanged
from fairserve.throttling.base import Limits


class ControlInbox(Protocol):
    """What the management endpoints need of control, from any thread."""

    def post(self, event: Event) -> None:
        """Hand an event to the dispatcher; does not wait for it."""
        ...


class ProgramInbox(Protocol):
    """What the management endpoints need of declared programs, from any thread."""

    def cancel_of(self, reason: str, *, app_id: str = "", tenant_id: str = "") -> None:
        """Cancel what runs of an app or a tenant; does not wait for it."""
        ...


def profile_of(app: App) -> AppProfile:
    """The profile of an app as the core knows it."""
    return AppProfile(
        stages=tuple(
            StageProfile(stage.input_tokens, stage.system_tokens, stage.output_tokens)
            for stage in app.stages
        ),
        calls_per_interaction=app.calls_per_interaction,
        idle_timeout_s=app.idle_timeout_s,
    )


def app_changed(app: App) -> AppChanged:
    """The event that tells control of an app."""
    return AppChanged(app.id, profile_of(app), Limits(app.limits.user_rpm, app.limits.app_rpm))


def user_changed(user: EndUser) -> UserChanged:
    """The event that tells control of a user."""
    return UserChanged(user.tenant_id, user.external_id, user.weight, user.rpm, user.blocked)


def load_control_events(session: Session) -> list[Event]:
    """Everything that control must know before its first call, in a stable order."""
    read_only(session)
    apps = session.scalars(
        select(App)
        .options(selectinload(App.stages), selectinload(App.limits))
        .order_by(App.created_at, App.id)
    )
    events: list[Event] = [app_changed(app) for app in apps]
    users = session.scalars(select(EndUser).order_by(EndUser.tenant_id, EndUser.external_id))
    events.extend(user_changed(user) for user in users)
    return events
