"""The configuration file: settings by their names and the fleet, as YAML with positions for messages.

The names of settings are checked by the server, which knows them, and the section ``fleet`` by the room
of the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.platform.base.yaml_file import YamlFile, YamlFileError, read_yaml

FLEET = "fleet"
"""The section of the fleet; every other name at the top level is a setting."""


@dataclass(frozen=True)
class ConfigFile(YamlFile):
    """The content of one file."""

    settings: Mapping[str, Any]
    fleet: Any
    """The section of the fleet, not validated."""
    has_fleet: bool


def read_config(path: Path, content: bytes | None = None) -> ConfigFile:
    """Read a file, or parse the given ``content`` of it. Raises YamlFileError."""
    file = read_yaml(path, content)
    plain = {} if file.content is None else file.content
    if not isinstance(plain, dict):
        raise YamlFileError(f"{path}:1: must be settings, each as `name: value`")
    for name in plain:
        if not isinstance(name, str):
            raise YamlFileError(f"{path}: {name!r} is no name of a setting")
    settings = {name: value for name, value in plain.items() if name != FLEET}
    return ConfigFile(path, plain, file.lines, settings, plain.get(FLEET), FLEET in plain)
