"""``tuning``: the settings of other systems with which this project's default is compared.

Each system of :data:`GRIDS` runs with every one of its settings in the cells of ``headline``, with other
seeds than the reported ones. The best setting has the greatest product of tokens per second in time,
the least satisfied part, and 1 / tail, as a geometric mean over the cells. One setting serves all cells,
as in an installation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import geometric_mean

from fairserve.benchmarks.reproduce.default.cells import WorkloadCell, headline_cells
from fairserve.benchmarks.reproduce.default.headline import (
    LEAST,
    TAIL,
    TUNED,
    WORK,
    Options,
    simulate,
)
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ReportRow, measure
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS

FIRST_SEED = 100
_LEAST, _WORK = 0.01, 1.0
"""Minimum figures in the score, for cells in which nothing is in time."""


def _grid(**values: Sequence[object]) -> list[Options]:
    """Return all combinations. A double underscore stands for a dot."""
    names = [name.replace("__", ".") for name in values]
    return [dict(zip(names, chosen, strict=True)) for chosen in product(*values.values())]


GRIDS: Mapping[str, Sequence[Options]] = {
    "vtc": [{}, {"local.predict": "mean"}],
    "cache-aware": _grid(router__balance_abs=(8, 16, 64)),
    "cache-aware-vtc": _grid(router__balance_abs=(8, 16, 64)),
    "d2lpm": [
        *_grid(local__quantum=(250, 1000, 5000), router__quantum_prompts=(20, 400, 1600)),
        {"local.quantum": 1000, "router.quantum_prompts": 400, "feed_window": 0.05},
    ],
}

COLUMNS = (
    ReportColumn("tok/s in time", lambda figures: figures[WORK.name], 0),
    ReportColumn("least satisfied", lambda figures: figures[LEAST.name], 3),
    ReportColumn("tail (s)", lambda figures: figures[TAIL.name], 2),
    ReportColumn("product", lambda figures: score(figures), 1),
)
"""Columns of geometric means over the cells."""


def score(figures: Mapping[str, float]) -> float:
    """Return the score of a setting; greater is better."""
    return figures[WORK.name] * figures[LEAST.name] / figures[TAIL.name]


def tuning(setting: Setting) -> Report:
    """Return a row for each setting. Raises TraceError without the recorded traces."""
    setting = replace(setting, first_seed=FIRST_SEED)
    return report_of(setting, headline_cells(setting), GRIDS)


def report_of(
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
    rows = {}
    for label in labels:
        of_seeds = [
            {
                column.name: geometric_mean(
                    max(least, column.of(found[cell, label][seed])) for cell in cells
                )
                for column, least in ((WORK, _WORK), (LEAST, _LEAST), (TAIL, 0.0))
            }
            for seed in range(setting.seeds)
        ]
        rows[label] = ReportRow(label, measure(COLUMNS, of_seeds))
    return Report(
        "tuning",
        "the best settings of the systems that the default is compared with",
        f"The cells of `headline`, with seeds {setting.first_seed} and up; geometric means over them.",
        COLUMNS,
        list(rows.values()),
        [_best(name, labels, rows) for name in grids],
    )


def _best(
    system: str, labels: Mapping[str, tuple[str, Options]], rows: Mapping[str, ReportRow]
) -> Check:
    own = {
        label: rows[label].measured["product"].value
        for label in labels
        if labels[label][0] == system
    }
    best = max(own, key=own.__getitem__)
    claim = f"{system} is compared with its best setting, {_text(TUNED[system])}"
    return Check(claim, labels[best][1] == TUNED[system], f"{best}: {own[best]:,.1f}")


def _text(options: Options) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items()) or "as published"
