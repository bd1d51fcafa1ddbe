"""``composition``: this project's default beside the systems of the papers, cell by cell.

A cell is a workload on one, two or four workers. In each, throughput, the well-behaved clients'
tail and the least satisfied client are relative to the best system of that cell, whichever it is,
so a system that is best in one cell and poor elsewhere is recognisable. The bounds are this
project's own: better than the prototype of ALGORITHMS section 7, whose figures are the published
ones here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import NamedTuple

from fairserve.benchmarks.reproduce.composition.plots import draw_cells
from fairserve.benchmarks.reproduce.composition.tuning import TUNED, tuned
from fairserve.benchmarks.reproduce.composition.workloads import (
    COLUMNS,
    OURS,
    SATISFIED,
    TAIL,
    THROUGHPUT,
    WORKLOADS,
    setting_text,
    simulate_cell,
)
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, measure, ratio
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS

WORKERS = (1, 2, 4)
OTHERS = (*TUNED, "rr-lpm", "fs-wi")
PROTOTYPE = {
    "vtc": (0.18, 0.58, 93.0, 3.3),
    "preble": (0.81, 0.96, 91.0, 6.7),
    "d2lpm": (0.19, 0.65, 95.0, 3.3),
    "fs-wi": (0.36, 0.73, 56.0, 6.6),
    OURS: (0.73, 0.88, 2.6, 1.4),
}
"""Results of the prototype's twelve cells, in the order of the columns of :data:`SUMMARY`."""
REACHED = 0.9
"""Minimum satisfaction of the least satisfied client under our system where any system reaches it."""
_NO_WORSE = 0.99
"""Ratio of medians from which one is no worse than the other."""

Cell = tuple[str, int]
Rows = Mapping[tuple[Cell, str], Row]


class Compared(NamedTuple):
    """A figure by which systems are compared."""

    column: Column
    high: bool
    """True if greater values are better."""


COMPARED = (Compared(THROUGHPUT, True), Compared(TAIL, False), Compared(SATISFIED, True))

SUMMARY = (
    Column("tok/s, worst cell", lambda ratios: min(ratios[THROUGHPUT.name]), 2),
    Column("geometric mean", lambda ratios: geometric_mean(ratios[THROUGHPUT.name]), 2),
    Column("p99 TTFT, worst cell", lambda ratios: max(ratios[TAIL.name]), 1),
    Column("mean", lambda ratios: fmean(ratios[TAIL.name]), 2),
    Column("satisfied, worst cell", lambda ratios: min(ratios[SATISFIED.name]), 2),
    Column("satisfied, mean", lambda ratios: fmean(ratios[SATISFIED.name]), 2),
)
"""Columns computed from the ratios of one system, by column of a cell."""


def composition(
    setting: Setting,
    workers: Sequence[int] = WORKERS,
    workloads: Iterable[str] = tuple(WORKLOADS),
) -> list[Report]:
    """Return a report of ratios to the best of each cell, and one of the cells themselves."""
    systems = {name: tuned(name) if name in TUNED else SYSTEMS[name] for name in (*OTHERS, OURS)}
    rows: dict[tuple[Cell, str], Row] = {}
    for workload in workloads:
        for number in workers:
            summaries = simulate_cell(setting, workload, number, systems)
            for name, of_seeds in summaries.items():
                label = f"{workload} D={number} {name}"
                rows[(workload, number), name] = Row(label, measure(COLUMNS, of_seeds))
    ratios = relative(rows)
    totals = [
        Row(
            name,
            measure(SUMMARY, [ratios[name]]),
            dict(zip((column.name for column in SUMMARY), PROTOTYPE.get(name, ()), strict=False)),
        )
        for name in systems
    ]
    plots: list[str] = []
    if setting.plots is not None:
        plots = [draw_cells(setting.plots / "composition.png", ratios).name]
    text = setting_text(setting)
    title = "the default beside the systems of the papers"
    settings = ", ".join(f"{name} ({_options(options)})" for name, options in TUNED.items())
    return [
        Report(
            "composition",
            title,
            f"{text} Relative to the best system of each cell; published are the prototype's figures, "
            f"on its own cells. The others' best settings, by `fairserve reproduce tuning`: {settings}.",
            SUMMARY,
            totals,
            claims(rows),
            plots,
            losses(rows),
        ),
        Report("composition-cells", title, text, COLUMNS, list(rows.values()), []),
    ]


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "as published"


def relative(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """Return ratios by system and column, one per cell: medians over the best median of the cell."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for (cell, name), row in rows.items():
        for column, high in COMPARED:
            same = [
                other.measured[column.name].value for (at, _), other in rows.items() if at == cell
            ]
            best = max(same) if high else min(same)
            value = ratio(row.measured[column.name].value, best)
            ratios.setdefault(name, {}).setdefault(column.name, []).append(value)
    return ratios


def claims(rows: Rows) -> list[Check]:
    """Check the bounds, and that no other system is as good in all figures and better in one."""
    ours = relative(rows)[OURS]
    throughput, tail = ours[THROUGHPUT.name], ours[TAIL.name]
    unsatisfied = [
        f"{cell[0]} D={cell[1]} {rows[cell, OURS].measured[SATISFIED.name].value:.2f}, "
        f"{name} {row.measured[SATISFIED.name].value:.2f}"
        for (cell, name), row in rows.items()
        if row.measured[SATISFIED.name].value >= REACHED
        and rows[cell, OURS].measured[SATISFIED.name].value < REACHED
    ]
    checks = [
        _bound("throughput, geometric mean", geometric_mean(throughput), least=0.92),
        _bound("throughput, worst cell", min(throughput), least=0.83),
        _bound("p99 TTFT of the well-behaved, mean", fmean(tail), most=1.2),
        _bound("p99 TTFT of the well-behaved, worst cell", max(tail), most=1.6),
        Check(
            f"{OURS}: every client satisfied to {REACHED:g} wherever a system does that",
            not unsatisfied,
            "; ".join(unsatisfied) or "in every such cell",
        ),
    ]
    for name in OTHERS:
        cells = [
            f"{cell[0]} D={cell[1]}"
            for (cell, system), row in rows.items()
            if system == name and dominates(row, rows[cell, OURS])
        ]
        claim = f"{name} is nowhere as good as {OURS} in every figure and better in one"
        checks.append(Check(claim, not cells, "; ".join(cells) or "in no cell"))
    return checks


def losses(rows: Rows) -> list[str]:
    """Return the figures in which another system is better by more than the spread over seeds."""
    found = []
    for (cell, name), ours in rows.items():
        if name != OURS:
            continue
        for compared in COMPARED:
            column = compared.column.name
            value = ours.measured[column].value
            better = [
                f"{other} {ratio(row.measured[column].value, value):.2f}"
                for (at, other), row in rows.items()
                if at == cell and other != OURS and _beats(row, ours, compared)
            ]
            if better:
                found.append(
                    f"Loses in {column} in {cell[0]} D={cell[1]}, of its own: {', '.join(better)}."
                )
    return found


def dominates(row: Row, ours: Row) -> bool:
    """Return whether a row is no worse in any figure, and better in one by more than the spread."""
    no_worse = all(_no_worse(row, ours, compared) for compared in COMPARED)
    return no_worse and any(_beats(row, ours, compared) for compared in COMPARED)


def _no_worse(row: Row, ours: Row, compared: Compared) -> bool:
    theirs, own = (each.measured[compared.column.name].value for each in (row, ours))
    return theirs >= _NO_WORSE * own if compared.high else _NO_WORSE * theirs <= own


def _beats(row: Row, ours: Row, compared: Compared) -> bool:
    theirs, own = (each.measured[compared.column.name] for each in (row, ours))
    return theirs.least > own.greatest if compared.high else theirs.greatest < own.least


def _bound(
    what: str, seen: float, *, least: float | None = None, most: float | None = None
) -> Check:
    if least is not None:
        return Check(f"{OURS}: {what}", seen >= least, f"{seen:.3f}, at least {least:g}")
    assert most is not None
    return Check(f"{OURS}: {what}", seen <= most, f"{seen:.3f} times the best, at most {most:g}")
