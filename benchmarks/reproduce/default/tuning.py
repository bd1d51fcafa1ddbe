"""``tuning``: the settings of other systems with which this project's default is compared.

Each system of the grids (``study.toml``) runs with every one of its settings in the cells of
``headline``, with other seeds than the reported ones. The best setting has the greatest product of
tokens per second in time, the least satisfied part, and 1 / tail, as a geometric mean over the cells.
One setting serves all cells, as in an installation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import geometric_mean

from fairserve.benchmarks.reproduce.default.cells import WorkloadCell, headline_cells
from fairserve.benchmarks.reproduce.default.headline import (
    COLUMNS,
    REPORTS,
    STUDY,
    TUNED,
    Options,
    simulate,
)
from fairserve.benchmarks.reproduce.report import Check, Report, ReportRow
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.study import report_of
from fairserve.scheduling.registry import SYSTEMS

FIRST_SEED = 100
_LEAST = {"tokens_per_s": 1.0, "least_satisfied": 0.01, "tail_s": 0.0}
"""Minimum figures in the score, for cells in which nothing is in time."""
GRIDS: Mapping[str, Sequence[Options]] = {
    name: [
        dict(zip(grid, chosen, strict=True)) for grid in grids for chosen in product(*grid.values())
    ]
    for name, grids in STUDY["grids"].items()
}
"""Settings that are tried, by system."""


def tuning(setting: Setting) -> Report:
    """Return a row for each setting. Raises TraceError without the recorded traces."""
    setting = replace(setting, first_seed=FIRST_SEED)
    return tuning_of(setting, headline_cells(setting), GRIDS)


def tuning_of(
    setting: Setting, cells: Mapping[str, WorkloadCell], grids: Mapping[str, Sequence[Options]]
) -> Report:
    """Return a row for each setting in some cells, and the best one of each system."""
    labels = {
        f"{name} {_text(options)}": (name, options)
        for name, grid in grids.items()
        for options in grid
    }
    systems = {
        label: SYSTEMS[name].with_options(options) for label, (name, options) in labels.items()
    }
    found = simulate(setting, cells, systems)
    runs = {
        label: [
            _means([found[f"{cell}: {label}"][seed] for cell in cells])
            for seed in range(setting.seeds)
        ]
        for label in labels
    }
    report = report_of(REPORTS["tuning"], COLUMNS, setting, runs, first=setting.first_seed)
    return replace(report, checks=[_best(name, labels, report.rows) for name in grids])


def _means(of_cells: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the geometric means over the cells, and the score of a setting; greater is better."""
    means = {
        key: geometric_mean(max(least, each[key]) for each in of_cells)
        for key, least in _LEAST.items()
    }
    score = means["tokens_per_s"] * means["least_satisfied"] / means["tail_s"]
    return {**means, "product": score}


def _best(
    system: str, labels: Mapping[str, tuple[str, Options]], rows: Sequence[ReportRow]
) -> Check:
    own = [row for row in rows if labels[row.name][0] == system]
    best = max(own, key=lambda row: row.measured["product"].value)
    claim = f"{system} is compared with its best setting, {_text(TUNED[system])}"
    seen = f"{best.name}: {best.measured['product'].value:,.1f}"
    return Check(claim, labels[best.name][1] == TUNED[system], seen)


def _text(options: Options) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items()) or "as published"
