"""Origin of a simulated report: its command, and the figures of its short cases at that time.

A simulation follows from the code alone, so a report is as new as the code while its short cases
(:mod:`fairserve.benchmarks.evidence.short_cases`) give the figures that they gave when it was made.
``benchmarks/short_cases.json`` has the present figures, which `make test` compares with the code.
The origin is the last line of a report::

    Made by `fairserve reproduce vtc-tables --seeds 25`, short cases `cd34ef56ab12`.

Weakness: a short case runs a part of the report's code, and draws no plot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import fairserve
from fairserve.benchmarks.evidence.reports import EVIDENCE

CHECKOUT = Path(fairserve.__file__).parents[2]
"""Root of the repository, if the package is in one."""
RESULTS = CHECKOUT / "benchmarks" / "results"
COMMITTED = CHECKOUT / "benchmarks" / "short_cases.json"
"""Figures of the short cases by case, row and column."""

Figures = Mapping[str, Mapping[str, float]]
"""Figures by row and column."""

_LINE = re.compile(
    r"^Made by `(?P<command>[^`]+)`, short cases `(?P<short_cases>[0-9a-f]+)`\.$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class ReportOrigin:
    """Origin of a simulated report."""

    command: str
    """Command with each setting that changes figures, without file names."""
    short_cases: str
    """Hash of the figures of its short cases at that time."""

    def line(self) -> str:
        """Return the last line of the report."""
        return f"Made by `{self.command}`, short cases `{self.short_cases}`.\n"


def present_origin(
    name: str, command: str, committed: Mapping[str, Figures]
) -> ReportOrigin | None:
    """Return the origin of a report that is made now; None if it is not in the registry."""
    if name not in EVIDENCE:
        return None
    return ReportOrigin(command, figures_hash(EVIDENCE[name].short_cases, committed))


def read_origin(path: Path) -> ReportOrigin | None:
    """Return the origin that a document names, if any."""
    found = _LINE.search(path.read_text(encoding="utf-8"))
    return ReportOrigin(**found.groupdict()) if found else None


def read_figures(path: Path = COMMITTED) -> dict[str, Figures]:
    """Return all committed figures by case; empty without the file."""
    if not path.is_file():
        return {}
    found: dict[str, Figures] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write_figures(figures: Mapping[str, Figures], path: Path = COMMITTED) -> None:
    """Write figures by case, one line per row."""
    cases = []
    for name in sorted(figures):
        rows = [
            f"  {json.dumps(row)}: {json.dumps(values)}" for row, values in figures[name].items()
        ]
        cases.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
    path.write_text("{\n" + ",\n".join(cases) + "\n}\n", encoding="utf-8")


def figures_hash(names: Iterable[str], figures: Mapping[str, Figures]) -> str:
    """Return the hash of these cases' figures; a case without figures has no rows."""
    chosen = {name: figures.get(name, {}) for name in names}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]
