"""Tables and figures of the VTC paper, read from ``paper.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairserve.benchmarks.reproduce.claims import Statement
from fairserve.benchmarks.reproduce.figure import Panel, PaperFigure
from fairserve.benchmarks.reproduce.report import ReportColumn
from fairserve.benchmarks.reproduce.vtc.generated import COLUMNS

OURS = "fairserve"
_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the paper: its workload, how it measures service, and its figures."""

    title: str
    published: Mapping[str, Sequence[float]]
    """By system: maximum, average and variance of the difference, and throughput in tokens/s."""
    suite: str = ""
    """Generated workload; empty: the recorded trace."""
    profiled: bool = False
    """Service is measured by the profiled cost."""


@dataclass(frozen=True, slots=True)
class SyntheticRun:
    """A row of a figure."""

    name: str
    suite: str
    system: str
    weighted: bool = False
    """True if the clients have the weights of the workload."""


@dataclass(frozen=True, slots=True)
class SyntheticFigure:
    """A figure on generated workloads, and its runs."""

    figure: PaperFigure
    runs: tuple[SyntheticRun, ...]
    to_end: bool = False
    """Serve all calls, so that each has a response time; otherwise the run stops after ten minutes,
    or with arrivals that last longer."""
    whole: bool = False
    """Never shorten the workload: its effect occurs late."""
    share: float = 1.0
    """Fraction of the duration."""


def tables() -> dict[int, Table]:
    """Return the tables by number."""
    return {
        entry["number"]: Table(**{key: entry[key] for key in entry if key != "number"})
        for entry in _FILE["table"]
    }


def generated_figures() -> dict[int, SyntheticFigure]:
    """Return the figures on generated workloads by number."""
    found: dict[int, SyntheticFigure] = {}
    entries: dict[int, Mapping[str, Any]] = {}
    for entry in _FILE["figure"]:
        entry = _complete(entry, entries)
        entries[entry["number"]] = entry
        runs = entry.get("runs") or [
            {"name": system, "suite": entry["suite"], "system": system}
            for system in entry["systems"]
        ]
        options = {key: entry[key] for key in ("to_end", "whole", "share") if key in entry}
        figure = paper_figure(entry, COLUMNS, tuple(_panels(entry["panels"])))
        found[figure.number] = SyntheticFigure(
            figure, tuple(SyntheticRun(**run) for run in runs), **options
        )
    return found


def recorded_entries() -> list[Mapping[str, Any]]:
    """Return the figures on the recorded trace, for :func:`paper_figure`."""
    entries: list[Mapping[str, Any]] = _FILE["recorded"]
    return entries


def paper_figure(
    entry: Mapping[str, Any], columns: Mapping[str, ReportColumn], panels: tuple[Panel, ...]
) -> PaperFigure:
    """Return a figure whose columns and statements the file names."""
    of_it = tuple(columns[name] for name in entry["columns"])
    published = {name: {of_it[0].name: v} for name, v in entry.get("published", {}).items()}
    statements = tuple(_statements(entry.get("statements", ())))
    return PaperFigure(
        entry["number"], entry["title"], of_it, statements, panels, published or None
    )


def _complete(
    entry: Mapping[str, Any], known: Mapping[int, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return an entry with all that it takes from the one that it is ``like``."""
    if "like" not in entry:
        return entry
    base = known[entry["like"]]
    both = [*base["statements"], *entry.get("statements", ())]
    return {**base, **entry, "statements": both}


def _statements(groups: Sequence[Mapping[str, Any]]) -> Iterator[Statement]:
    """Yield the statements of each group, all of them for one row after the other."""
    for group in groups:
        for row in group.get("of", [""]):
            for each in group["are"]:
                yield Statement(**{"row": row, **each})


def _panels(given: Sequence[Mapping[str, Any]]) -> Iterator[Panel]:
    """Yield one panel for differences of several runs, and one for the clients of each run."""
    for each in given:
        if "difference" in each:
            yield Panel("difference", tuple(each["difference"]), each.get("bound"))
        for row in each.get("service", ()):
            yield Panel("service", (row,))
        for row in each.get("response", ()):
            yield Panel("response", (row,))
