"""Read a YAML file with the line of each value, for messages that name it. Repeated names are errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yaml import Node

MAX_BYTES = 4 * 1024 * 1024
"""Size of the largest file that is read."""

Place = tuple[str | int, ...]
"""The names and indexes that lead to a value."""


class YamlFileError(ValueError):
    """The file cannot be read. The message names the file, the line and the error."""


@dataclass(frozen=True)
class YamlFile:
    """The content of one file."""

    path: Path
    content: Any
    """None for an empty file."""
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


def read_yaml(path: Path, content: bytes | None = None) -> YamlFile:
    """Read a file, or parse the given ``content`` of it. Raises YamlFileError."""
    import yaml

    if content is None:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise YamlFileError(f"{path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise YamlFileError(f"{path}: it is larger than {MAX_BYTES} bytes")
    lines: dict[Place, int] = {}
    try:
        loader = _loader(content)
        node = loader.get_single_node()
        if node is None:
            return YamlFile(path, None, lines)
        for place, line in _lines(node, ()):
            if place in lines:
                raise YamlFileError(
                    f"{path}:{line}: {_dotted(place)} is given twice, first in line {lines[place]}"
                )
            lines[place] = line
        return YamlFile(path, loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlFileError(f"{path}:{line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise YamlFileError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise YamlFileError(f"{path}: it is nested too deeply") from error


def _loader(content: bytes) -> Any:
    """Return a loader that names the line of a value which its type lacks, as the 31st of June."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # YAML has no types
        def construct_object(self, node: Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, KeyError) as error:
                raise yaml.MarkedYAMLError(
                    problem=str(error), problem_mark=node.start_mark
                ) from error

    return Loader(content)


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
