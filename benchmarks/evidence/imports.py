"""Import closure of Python files: the files of this repository that they run, directly or not.

Imports are read from the syntax trees, including those inside functions. Weakness: a module
imported by a computed name is not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path


def imported_names(tree: ast.AST) -> set[str]:
    """Return the dotted names that a module's import statements may load as modules."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


class ImportGraph:
    """Imports of the files below some folders. Each file is read once."""

    def __init__(self, folders: Sequence[Path], without: Path | None = None) -> None:
        """``folders`` are those of Python's search path; files below ``without`` are excluded."""
        self._folders = folders
        self._without = None if without is None else without.resolve()
        self._imports: dict[Path, tuple[Path, ...]] = {}
        self._files: dict[str, tuple[Path, ...]] = {}

    def closure(self, start: Iterable[Path]) -> list[Path]:
        """Return these files and all their imports, resolved, each once."""
        found = dict.fromkeys(file.resolve() for file in start)
        for file in (waiting := list(found)):  # grows during the walk
            for each in self._imported(file):
                if each not in found:
                    found[each] = None
                    waiting.append(each)
        return waiting

    def _imported(self, file: Path) -> tuple[Path, ...]:
        if file not in self._imports:
            names = sorted(imported_names(ast.parse(file.read_bytes())))
            self._imports[file] = tuple(each for name in names for each in self.module_files(name))
        return self._imports[file]

    def module_files(self, name: str) -> tuple[Path, ...]:
        """Return the files that the import of a dotted name runs: its packages and the module."""
        if name not in self._files:
            parts = name.split(".")
            places = [
                folder.joinpath(*parts[:n])
                for folder in self._folders
                for n in range(1, len(parts) + 1)
            ]
            files = [file for at in places for file in (at / "__init__.py", at.with_suffix(".py"))]
            # Resolved, because src/fairserve holds links to the packages.
            own = (file.resolve() for file in files if file.is_file())
            self._files[name] = tuple(file for file in own if not self._left_out(file))
        return self._files[name]

    def _left_out(self, file: Path) -> bool:
        return self._without is not None and file.is_relative_to(self._without)
