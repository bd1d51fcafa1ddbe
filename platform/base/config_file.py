"""The configuration file: settings by their names and the fleet, as YAML with positions for messages.

The file is read by pydantic-settings' source of YAML files. The names of settings are checked by the
server, which knows them, and the section ``fleet`` by the room of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_settings import YamlConfigSettingsSource

from fairserve.platform.base.settings import RoomSettings

if TYPE_CHECKING:
    from yaml import Node

FLEET = "fleet"
"""The section of the fleet; every other name at the top level is a setting."""
MAX_CONFIG_BYTES = 4 * 1024 * 1024

Place = tuple[str | int, ...]
"""The names and indexes that lead to a value."""


class ConfigFileError(ValueError):
    """The file cannot be read. The message names the file, the line and the error."""


@dataclass(frozen=True)
class ConfigFile:
    """The content of one file."""

    path: Path
    settings: Mapping[str, Any]
    fleet: Any
    """The section of the fleet, not validated."""
    has_fleet: bool
    lines: Mapping[Place, int]
    """Line of each name and each item of a list."""

    def line(self, *place: str | int) -> int:
        """Return the line of a value, or of the closest value that contains it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def at(self, *place: str | int) -> str:
        """Return ``FILE:LINE`` of a value."""
        return f"{self.path}:{self.line(*place)}"


def read_config(path: Path, content: bytes | None = None) -> ConfigFile:
    """Read a file, or parse the given ``content`` of it. Raises ConfigFileError."""
    try:
        source = _Source(path, content)
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror or error}") from error
    plain = dict(source.yaml_data)
    has_fleet = FLEET in plain
    return ConfigFile(path, plain, plain.pop(FLEET, None), has_fleet, source.lines)


class _Source(YamlConfigSettingsSource):
    """Reads one file, which must exist, with the lines of its names. Rejects repeated names."""

    def __init__(self, path: Path, content: bytes | None) -> None:
        self.lines: dict[Place, int] = {}
        self._content = content
        super().__init__(RoomSettings, yaml_file=path)

    def _read_files(self, files: Any, deep_merge: bool = False) -> dict[str, Any]:
        return self._read_file(files)

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        import yaml

        content = self._content
        if content is None:
            with file_path.open("rb") as file:
                content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise ConfigFileError(f"{file_path}: it is larger than {MAX_CONFIG_BYTES} bytes")
        try:
            loader = yaml.SafeLoader(content)
            node = loader.get_single_node()
            if node is None:
                return {}
            for place, line in _lines(node, ()):
                if place in self.lines:
                    raise ConfigFileError(
                        f"{file_path}:{line}: {_dotted(place)} is given twice, first in line"
                        f" {self.lines[place]}"
                    )
                self.lines[place] = line
            plain = loader.construct_document(node)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigFileError(f"{file_path}:{line}: not YAML: {error.problem}") from error
        except yaml.YAMLError as error:
            raise ConfigFileError(
                f"{file_path}: not YAML: {' '.join(str(error).split())}"
            ) from error
        except RecursionError as error:
            raise ConfigFileError(f"{file_path}: it is nested too deeply") from error
        if not isinstance(plain, dict):
            raise ConfigFileError(f"{file_path}:1: must be settings, each as `name: value`")
        for name in plain:
            if not isinstance(name, str):
                raise ConfigFileError(f"{file_path}: {name!r} is no name of a setting")
        return plain


def _lines(node: Node, place: Place) -> Iterator[tuple[Place, int]]:
    """Yield the place and the line of each name and item below a node."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                below = (*place, key.value)
                yield below, key.start_mark.line + 1
                yield from _lines(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line + 1
            yield from _lines(value, (*place, index))


def _dotted(place: Sequence[str | int]) -> str:
    return ".".join(map(str, place))
