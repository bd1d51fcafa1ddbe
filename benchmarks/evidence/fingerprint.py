"""Fingerprint of a report: a hash of the code that its figures depend on, and of its command.

The code is the import closure of the report's modules as syntax trees. Docstrings, comments, line
breaks and the version of Python make no difference; any other change does, including a new file
name. Third-party packages, recorded traces and the machine are not included, nor is this folder,
which measures nothing.

Cost: the first fingerprint of a process parses all its modules (2 s for all reports together).
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import fairserve
from fairserve.benchmarks.evidence.imports import ImportGraph
from fairserve.benchmarks.evidence.reports import Evidence

PACKAGE = Path(fairserve.__file__).parent
CHECKOUT = PACKAGE.parents[1]
"""Root of the repository, if the package is in one."""
RESULTS = CHECKOUT / "benchmarks" / "results"
DIGITS = 12


def short_hash(text: str) -> str:
    """Return the first twelve hexadecimal digits of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@lru_cache(maxsize=4096)
def code_hash(source: bytes) -> str:
    """Return the hash of a module's syntax tree without docstrings and positions.

    Raises SyntaxError if the source is not Python.
    """
    return short_hash("".join(_tokens(ast.parse(source))))


def _tokens(node: ast.AST) -> Iterator[str]:
    """Serialise a tree without empty fields, since new versions of Python add such fields."""
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        if value is None and name != "value":  # the constant None has a value
            continue
        if isinstance(value, ast.AST):
            yield f" {name}="
            yield from _tokens(value)
        elif isinstance(value, list):
            kept = [each for each in value if not _is_docstring(each)]
            if kept:
                yield f" {name}=["
                for each in kept:
                    # The keys of a dictionary contain None for each **mapping.
                    yield from _tokens(each) if isinstance(each, ast.AST) else [f" {each!r}"]
                yield "]"
        else:
            yield f" {name}={value!r}"
    yield ")"


def _is_docstring(node: object) -> bool:
    """Return whether a node is a statement of only a string; such strings also document fields."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class Fingerprints:
    """Fingerprints of reports. Each file is read once."""

    def __init__(self, package: Path = PACKAGE) -> None:
        """``package`` is the folder ``fairserve``; in a checkout, the one below ``src``."""
        self._package = package.resolve()
        self._checkout = self._package.parents[1]
        self._graph = ImportGraph(
            [self._package.parent, self._checkout / "tests" / "support"],
            without=self._package / "benchmarks" / "evidence",
        )

    def of(self, evidence: Evidence, command: str | None = None) -> str:
        """Return the fingerprint of a report made by its own command, or by the given one.

        Raises ValueError if a module of the report is missing.
        """
        files = {self._name(file): code_hash(file.read_bytes()) for file in self.files(evidence)}
        lines = [command or evidence.command, *(f"{name} {files[name]}" for name in sorted(files))]
        return short_hash("\n".join(lines))

    def files(self, evidence: Evidence) -> list[Path]:
        """Return the import closure of the report. Raises ValueError if a module is missing."""
        # The registries import it by its name.
        start = [*self._graph.module_files("fairserve.benchmarks.policies.registry")]
        for module in evidence.modules:
            if module.endswith(".py"):
                file = self._checkout / module
                found = [file] if file.is_file() else []
            else:
                found = list(self._graph.module_files(module))
                last = module.rpartition(".")[2]
                found = found if {f"{last}.py"} & {file.name for file in found} else []
            if not found:
                raise ValueError(f"{evidence.name}: there is no module {module}")
            start += found
        return self._graph.closure(start)

    def _name(self, file: Path) -> str:
        """Return the path in a checkout, or the same path in an installed package."""
        root = self._package if file.is_relative_to(self._package) else self._checkout
        return file.relative_to(root).as_posix()
