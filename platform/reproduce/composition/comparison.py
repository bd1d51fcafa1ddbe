"""``composition``: this project's default beside the systems of the papers, cell by cell.

A cell is a workload on one, two or four workers. In each, throughput and the well-behaved clients' tail
are taken relative to the best system of that cell, whichever it is: a system that is best somewhere and
useless elsewhere shows as such. The bounds are those that this project sets itself: better than the
prototype of ALGORITHMS section 7, whose figures are the published ones here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean

from fairserve.platform.reproduce.composition.plots import draw_cells
from fairserve.platform.reproduce.composition.workloads import (
    COLUMNS,
    ENTITLED,
    EXTEND,
    OURS,
    TAIL,
    THROUGHPUT,
    WORKLOADS,
    setting_text,
    simulate_cell,
)
from fairserve.platform.reproduce.report import Check, Column, Report, Row, Spread, measure
from fairserve.platform.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS

WORKERS = (1, 2, 4)
OTHERS = ("vtc", "rr-lpm", "preble", "cache-aware", "d2lpm", "fs-wi")
PROTOTYPE = {
    "vtc": (0.18, 0.58, 93.0, 3.3, 0.86),
    "preble": (0.81, 0.96, 91.0, 6.7, 0.05),
    "d2lpm": (0.19, 0.65, 95.0, 3.3, 0.89),
    "fs-wi": (0.36, 0.73, 56.0, 6.6, 0.49),
    OURS: (0.73, 0.88, 2.6, 1.4, 0.88),
}
"""What the prototype's twelve cells gave, in the order of the columns of :data:`SUMMARY`."""

Cell = tuple[str, int]
Rows = Mapping[tuple[Cell, str], Row]

SUMMARY = (
    Column("tok/s, worst cell", lambda ratios: min(ratios[THROUGHPUT.name]), 2),
    Column("geometric mean", lambda ratios: geometric_mean(ratios[THROUGHPUT.name]), 2),
    Column("p99 TTFT, worst cell", lambda ratios: max(ratios[TAIL.name]), 1),
    Column("mean", lambda ratios: fmean(ratios[TAIL.name]), 2),
    Column("Jain, worst cell", lambda ratios: min(ratios[ENTITLED.name]), 2),
)
"""From the ratios of one system, by column of a cell."""


def composition(
    setting: Setting,
    workers: Sequence[int] = WORKERS,
    workloads: Iterable[str] = tuple(WORKLOADS),
) -> list[Report]:
    """A report of ratios to the best of each cell, and one of the cells themselves."""
    systems = {name: SYSTEMS[name] for name in (*OTHERS, OURS)}
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
    return [
        Report(
            "composition",
            title,
            f"{text} Relative to the best system of each cell; published are the prototype's figures, "
            "on its own cells.",
            SUMMARY,
            totals,
            claims(rows),
            plots,
        ),
        Report("composition-cells", title, text, COLUMNS, list(rows.values()), []),
    ]


def relative(rows: Rows) -> dict[str, dict[str, list[float]]]:
    """By system and column, one value a cell: medians over the best median, Jain's index as it is."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for (cell, name), row in rows.items():
        values = ratios.setdefault(name, {})
        same = [other.measured for (at, _), other in rows.items() if at == cell]
        most = max(seen[THROUGHPUT.name].value for seen in same)
        least = min(seen[TAIL.name].value for seen in same)
        seen = row.measured
        for column, value in (
            (THROUGHPUT, seen[THROUGHPUT.name].value / most),
            (TAIL, seen[TAIL.name].value / least),
            (ENTITLED, seen[ENTITLED.name].value),
        ):
            values.setdefault(column.name, []).append(value)
    return ratios


def claims(rows: Rows) -> list[Check]:
    """The bounds, and that no other system is better at everything anywhere."""
    ours = relative(rows)[OURS]
    throughput, tail, jain = (ours[column.name] for column in (THROUGHPUT, TAIL, ENTITLED))
    extend = min(row.measured[EXTEND.name].value for (_, name), row in rows.items() if name == OURS)
    checks = [
        _bound("throughput, geometric mean", geometric_mean(throughput), least=0.90),
        _bound("throughput, worst cell", min(throughput), least=0.75),
        _bound("p99 TTFT of the well-behaved, mean", fmean(tail), most=1.3),
        _bound("p99 TTFT of the well-behaved, worst cell", max(tail), most=2.5),
        _bound(
            f"Jain's index of entitled service, worst cell (of plain service {extend:.2f})",
            min(jain),
            least=0.88,
        ),
    ]
    for name in OTHERS:
        cells = [
            f"{cell[0]} D={cell[1]}"
            for (cell, system), row in rows.items()
            if system == name and _dominates(row, rows[cell, OURS])
        ]
        claim = f"{name} nowhere beats {OURS} on fairness and throughput at once"
        checks.append(Check(claim, not cells, "; ".join(cells) or "in no cell"))
    return checks


def _bound(
    what: str, seen: float, *, least: float | None = None, most: float | None = None
) -> Check:
    if least is not None:
        return Check(f"{OURS}: {what}", seen >= least, f"{seen:.3f}, at least {least:g}")
    assert most is not None
    return Check(f"{OURS}: {what}", seen <= most, f"{seen:.3f} times the best, at most {most:g}")


def _dominates(row: Row, ours: Row) -> bool:
    """By more than the spread of the seeds."""

    def above(column: Column) -> bool:
        one: Spread = row.measured[column.name]
        return one.least > 1.005 * ours.measured[column.name].greatest

    return above(THROUGHPUT) and above(ENTITLED)
