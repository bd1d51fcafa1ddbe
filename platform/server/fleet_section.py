"""The section ``fleet`` of the configuration file, which then takes the place of the fleet file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fairserve.platform.base.config_file import FLEET, ConfigFile, ConfigFileError, read_config
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.fleet_file import FleetFileError, Parse, fleet_part, parse_fleet
from fairserve.platform.server.settings import Settings
from fairserve.platform.server.settings_sources import Layers, SettingsError


def fleet_parser(settings: Settings) -> Parse:
    """Return the parser of the fleet file: of the configuration file, if its section is the fleet."""
    path = settings.fleet.fleet_file
    if path is None or path != settings.server.config:
        return parse_fleet
    return partial(_parse_section, path)


def _parse_section(path: Path, content: bytes) -> FleetPart:
    """Return the fleet of a configuration file. Raises FleetFileError.

    A file with a wrong setting changes no fleet either. One that lost its section is rejected: it would
    drain every worker by mistake.
    """
    try:
        config = read_config(path, content)
    except ConfigFileError as error:
        raise FleetFileError(str(error).removeprefix(f"{path}:").strip()) from error
    _check_settings(config)
    if not config.has_fleet:
        raise FleetFileError(
            f"the section {FLEET} is missing; write `{FLEET}: {{}}` for no workers"
        )

    def where(place: tuple[str | int, ...]) -> str:
        return f"line {config.line(FLEET, *place)}: "

    return fleet_part({} if config.fleet is None else config.fleet, where)


def _check_settings(config: ConfigFile) -> None:
    """Raise FleetFileError for a setting of the file that is wrong, whatever flags there are."""
    try:
        Layers({}, frozenset(), config).settings()
    except SettingsError as error:
        own = [each for each in error.problems if each.startswith(f"{config.path}:")]
        if own:
            raise FleetFileError("; ".join(own)) from error
