"""Studies as data: the columns, published values, statements and texts of the tables of a file.

A file of a paper or study (``paper.toml``) has ``columns``, each the place of a figure in the summary
of a run, and tables and figures that name their columns and rows. Its statements are grouped: each of
``are`` is made about each row of ``of``. A table ``like`` another has its entries and statements, too.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fairserve.benchmarks.plots import PlotPanel, draw_panels
from fairserve.benchmarks.reproduce.report import Report, ReportColumn, rows_of
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.statements import Statement

Entry = Mapping[str, Any]
Columns = Mapping[str, ReportColumn]


def read_study(code: str, name: str = "paper.toml") -> dict[str, Any]:
    """Return the file of this name beside a module, with all entries complete."""
    study = tomllib.loads(Path(code).with_name(name).read_text(encoding="utf-8"))
    for name, entries in study.items():
        if isinstance(entries, list):
            study[name] = [_complete(entry, entries) for entry in entries]
    return study


def _complete(entry: Entry, entries: Sequence[Entry]) -> Entry:
    if "like" not in entry:
        return entry
    [base] = (each for each in entries if each.get("number") == entry["like"])
    return {**base, **entry, "statements": [*base["statements"], *entry.get("statements", ())]}


def columns_of(entries: Mapping[str, Entry]) -> dict[str, ReportColumn]:
    """Return columns by name: each has a dotted path ``at``, and possibly ``times`` and ``digits``.

    ``name`` is the one that is shown, if two columns share it.
    """
    return {
        name: ReportColumn(
            entry.get("name", name),
            at(entry["at"], entry.get("times", 1.0)),
            entry.get("digits", 0),
        )
        for name, entry in entries.items()
    }


def at(path: str, times: float = 1.0) -> Callable[[Mapping[str, Any]], float]:
    """Return a function for the figure at a dotted path of a summary; NaN if it is not there.

    If there are several by name, it is their sum.
    """
    return partial(_figure, path.split("."), times)


def _figure(path: Sequence[str], times: float, summary: Mapping[str, Any]) -> float:
    found: Any = summary
    for key in path:
        found = found.get(key)
        if found is None:
            return math.nan
    return times * float(sum(found.values()) if isinstance(found, Mapping) else found)


def statements_of(groups: Sequence[Entry]) -> Iterator[Statement]:
    """Yield the statements of each group, all of them for one row after the other."""
    for group in groups:
        for row in group.get("of", [""]):
            for each in group["are"]:
                yield Statement(**{"row": row, **each})


def report_of(
    entry: Entry,
    columns: Columns,
    setting: Setting,
    runs: Mapping[str, Sequence[Any]],
    **values: object,
) -> Report:
    """Return the report of a table: rows of runs, one per seed, and its statements.

    ``values`` are those of the fields in its text, beside ``seeds``.
    """
    shown = [columns[name] for name in entry["columns"]]
    judged = [columns[name] for name in entry.get("judged", ())]
    published = {
        name: row if isinstance(row, Mapping) else dict(zip(entry["columns"], row, strict=False))
        for name, row in entry.get("published", {}).items()
    }
    rows = rows_of([*shown, *judged], runs, published)
    made = (each.check(rows) for each in statements_of(entry.get("statements", ())))
    return Report(
        entry["name"],
        entry["title"],
        entry["text"].format(seeds=setting.seeds, **values),
        shown,
        list(rows.values()),
        [check for check in made if check is not None],
        notes=entry.get("notes", ()),
    )


def drawn(setting: Setting, report: Report, panels: Iterable[PlotPanel], **layout: Any) -> Report:
    """Return a report with its plot, if plots are requested; only then are the panels made."""
    if setting.plots is None:
        return report
    path = setting.plots / f"{report.name}.png"
    return replace(report, plots=(draw_panels(path, list(panels), **layout),))
