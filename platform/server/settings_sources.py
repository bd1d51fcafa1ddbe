"""The settings of one command: flags over the environment, over the configuration file, over defaults.

The file has settings by their own names, and the fleet in its section ``fleet``. With that section the
file is also the fleet file: :attr:`FleetSettings.fleet_file` is its path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from fairserve.platform.base.config_file import FLEET, ConfigFile, read_config
from fairserve.platform.base.option_pairs import parse_options
from fairserve.platform.base.removed_names import REMOVED_SETTINGS
from fairserve.platform.base.validation import text_of
from fairserve.platform.base.yaml_file import YamlFileError
from fairserve.platform.server.settings import FIELDS, ROOMS, Settings

_WORD = re.compile(r"\w+")

Source = Literal["flag", "environment", "file", "default"]


class SettingsError(ValueError):
    """Settings are wrong. Each problem is one line that names the setting, never its value."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Layers:
    """The values of settings that are given, by where they come from."""

    flags: Mapping[str, Any]
    environment: frozenset[str]
    """Settings that the environment sets."""
    file: ConfigFile | None = None

    def source(self, name: str) -> Source:
        """Return where the effective value of a setting comes from."""
        if name in self.flags:
            return "flag"
        if name in self.environment:
            return "environment"
        if self.file is not None and (
            name in self.file.settings or (name == "fleet_file" and self.file.has_fleet)
        ):
            return "file"
        return "default"

    def settings(self) -> Settings:
        """Return the effective settings. Raises SettingsError with all problems."""
        settings, problems = self.read()
        if problems:
            raise SettingsError(problems)
        return settings

    def read(self) -> tuple[Settings, list[str]]:
        """Return the settings with all problems; defaults stand for wrong values.

        Where values contradict each other, the defaults of their room stand for all of it.
        """
        problems = [*self._wrong_names(), *self._two_fleets(), *_removed()]
        values, wrong = self._values(), set[str]()
        while True:  # a room with its defaults is valid
            try:
                return Settings(**values), problems
            except ValidationError as error:
                parts = error.errors()
            # A contradiction with a wrong value may be none with the right one.
            own = (part for part in parts if wrong.isdisjoint(_WORD.findall(part["msg"])))
            problems += map(self._problem, own)
            for part in parts:
                name = _name_in(part)
                wrong |= {name} if name in FIELDS else {*ROOMS[str(part["loc"][0])].model_fields}
            values |= {name: FIELDS[name].get_default(call_default_factory=True) for name in wrong}

    def _values(self) -> dict[str, Any]:
        """Return the flags and the values of the file that nothing overrides."""
        values: dict[str, Any] = {}
        if self.file is not None:
            values = {
                name: value
                for name, value in self.file.settings.items()
                if name in FIELDS and name != "config" and self.source(name) == "file"
            }
            if self.file.has_fleet and self.source("fleet_file") == "file":
                values["fleet_file"] = self.file.path
        return values | dict(self.flags)

    def _wrong_names(self) -> Iterator[str]:
        if self.file is None:
            return
        for name in self.file.settings:
            where = self.file.at(name)
            if name == "config":
                yield f"{where}: config: a configuration file cannot name another one"
            elif name in REMOVED_SETTINGS:
                yield f"{where}: {name} was removed: {REMOVED_SETTINGS[name]}"
            elif name not in FIELDS:
                close = get_close_matches(name.replace("-", "_"), [*FIELDS, FLEET], 1)
                advice = f"; did you mean {close[0]}?" if close else ""
                yield f"{where}: {name}: there is no such setting{advice}"

    def _two_fleets(self) -> Iterator[str]:
        if self.file is None or not self.file.has_fleet:
            return
        others = {"flag": "--fleet-file", "environment": "FAIRSERVE_FLEET_FILE"}
        other = others.get(self.source("fleet_file"))
        if "fleet_file" in self.file.settings:
            other = "fleet_file"
        if other is not None:
            yield f"{self.file.at(FLEET)}: fleet: {other} names a fleet file, too; remove one of them"

    def _problem(self, error: Any) -> str:
        message, name = text_of(error), _name_in(error)
        if not name:
            return message
        if self.file is not None and name in FIELDS and self.source(name) == "file":
            return f"{self.file.at(name, *error['loc'][2:])}: {name}: {message}"
        return f"{name}: {message}"


def layers_of(flags: Mapping[str, Any]) -> Layers:
    """Return the layers of parsed flags, which are None if not given. Raises SettingsError.

    The configuration file is that of the flag ``config``, else of FAIRSERVE_CONFIG.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        if isinstance(given.get("system_options"), list):
            given["system_options"] = parse_options(given["system_options"])
        path = given.get("config") or os.environ.get("FAIRSERVE_CONFIG")
        file = read_config(Path(path)) if path else None
    except (YamlFileError, ValueError) as error:
        raise SettingsError([str(error)]) from error
    return Layers(given, _set_in_environment(), file)


def settings_from(flags: Mapping[str, Any]) -> Settings:
    """Return the settings of parsed flags, of the environment and of the configuration file.

    Raises SettingsError with one line that names each wrong setting, never its value.
    """
    return layers_of(flags).settings()


def _name_in(error: Any) -> str:
    """Return the setting of a problem; a problem of several settings names only their room."""
    return "".join(map(str, error["loc"][1:2])).removeprefix("FAIRSERVE_").lower()


def _removed() -> Iterator[str]:
    """Yield an error for each variable that a server read before. Other unknown ones have no effect."""
    for name, instead in REMOVED_SETTINGS.items():
        variable = f"FAIRSERVE_{name.upper()}"
        if os.environ.get(variable):
            yield f"{variable} was removed: {instead}"


def _set_in_environment() -> frozenset[str]:
    found: set[str] = set()
    for room in ROOMS.values():
        source = EnvSettingsSource(room)
        found |= {
            name
            for name, info in room.model_fields.items()
            if source.get_field_value(info, name)[0] is not None
        }
    return frozenset(found)
