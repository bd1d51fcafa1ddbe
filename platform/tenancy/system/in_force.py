"""The system in force: the operators' newest choice, or that of the settings."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from fairserve.platform.db.operations import ThrottlingSetting
from fairserve.platform.tenancy.system.parameters import configured_system, system_config
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.scheduling.system import SystemConfig


def newest_choice(session: Session) -> ThrottlingSetting | None:
    """Return the version in force; None while the server's settings hold."""
    return session.scalars(
        select(ThrottlingSetting).order_by(ThrottlingSetting.version.desc()).limit(1)
    ).one_or_none()


def load_system(session: Session, settings: TuningSettings) -> SystemConfig:
    """Return the system in force. One query. Raises ValueError if the stored one is not valid now."""
    row = newest_choice(session)
    if row is None:
        return configured_system(settings)
    return system_config(settings, row.system, row.parameters)
