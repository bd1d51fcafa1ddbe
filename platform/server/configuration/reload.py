"""The settings that a running server changes after SIGHUP; every other one needs a restart.

A setting is here if the code reads it when it uses it, or if
:meth:`~fairserve.platform.server.lifecycle.Platform.reload` passes it to the part that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairserve.platform.server.settings import FIELDS, ROOM_OF, Settings

_RETENTION = "ledger_retention_days usage_retention_days content_retention_days"
_JOBS = f"{_RETENTION} webhook_allowed_networks"
_OTHERS = (
    "log_level log_format keepalive_s metrics_top_clients console_session_hours drain_timeout_s"
)

RELOADABLE = frozenset(f"{_JOBS} {_OTHERS}".split())
"""Names of settings. No validation compares one of them with a setting that needs a restart."""

READ_BY_JOBS = frozenset(_JOBS.split())
"""Those that background jobs read, too; Celery's processes read them when they start."""


@dataclass(frozen=True)
class SettingsChange:
    """The difference between the settings in force and those of the file."""

    settings: Settings
    """The settings in force with the new values of those that can change."""
    applied: tuple[str, ...]
    """Names of changed settings that apply now."""
    restart: tuple[str, ...]
    """Names of changed settings that need a restart."""


def change_of(current: Settings, wanted: Settings) -> SettingsChange:
    """Return the change from the settings in force to the ones wanted."""
    changed = [name for name in FIELDS if _read(current, name) != _read(wanted, name)]
    applied = tuple(name for name in changed if name in RELOADABLE)
    settings = current.changed(**{name: _read(wanted, name) for name in applied})
    restart = tuple(name for name in changed if name not in RELOADABLE)
    return SettingsChange(settings, applied, restart)


def _read(settings: Settings, name: str) -> object:
    return getattr(getattr(settings, ROOM_OF[name]), name)
