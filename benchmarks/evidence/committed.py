"""Committed figures of the short cases: ``benchmarks/short_cases.json``, by case, row and column.

The hash of a report's cases is in its mark, so a report made before these figures changed can be
recognised as older.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fairserve.benchmarks.evidence.fingerprint import CHECKOUT, short_hash

COMMITTED = CHECKOUT / "benchmarks" / "short_cases.json"

Figures = Mapping[str, Mapping[str, float]]
"""Figures by row and column."""


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
    """Return the hash of these cases' figures; empty without cases, or if one has no figures."""
    chosen = {name: figures.get(name) for name in names}
    if not chosen or None in chosen.values():
        return ""
    return short_hash(json.dumps(chosen, sort_keys=True))
