"""The section ``fleet`` of the configuration file, which then takes the place of the fleet file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fairserve.platform.base.config_file import FLEET, ConfigFile, read_config
from fairserve.platform.base.yaml_file import YamlFileError
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.fleet_file import FleetFileError, Parse, fleet_part, parse_fleet
from fairserve.platform.server.configuration.sources import Layers
from fairserve.platform.server.settings import Settings


def fleet_parser(settings: Settings, *, alone: bool = False) -> Parse:
    """Return the parser of the fleet file: of the configuration file, if its section is the fleet.

    ``alone``: wrong settings beside the section are no errors of the fleet.
    """
    path = settings.fleet.fleet_file
    if path is None or path != settings.server.config:
        return parse_fleet
    return partial(_parse_section, path, alone)


def _parse_section(path: Path, alone: bool, content: bytes) -> FleetPart:
    """Return the fleet of a configuration file. Raises FleetFileError.

    A file with a wrong setting changes no fleet either. One that lost its section is rejected: it would
    drain every worker by mistake.
    """
    try:
        config = read_config(path, content)
    except YamlFileError as error:
        raise FleetFileError(str(error).removeprefix(f"{path}:").strip()) from error
    if not alone and (wrong := wrong_settings(config)):
        raise FleetFileError("; ".join(wrong))
    if not config.has_fleet:
        raise FleetFileError(
            f"the section {FLEET} is missing; write `{FLEET}: {{}}` for no workers"
        )

    def where(place: tuple[str | int, ...]) -> str:
        return f"line {config.line(FLEET, *place)}: "

    return fleet_part({} if config.fleet is None else config.fleet, where)


def wrong_settings(config: ConfigFile) -> list[str]:
    """Return the problems of a configuration file's own settings, whatever flags there are."""
    _, problems = Layers({}, frozenset(), config).read()
    return [problem for problem in problems if problem.startswith(f"{config.path}:")]
