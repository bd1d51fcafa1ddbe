"""``tuning``: the settings of other systems with which this project's default is compared.

Each system of :data:`GRIDS` runs with every one of its settings on the workloads of
:mod:`fairserve.benchmarks.reproduce.composition.workloads`, on two workers, with other seeds than the
reported ones. The best setting has the greatest product of tokens per second, satisfaction of the
least satisfied client, and 1 / p99 TTFT of the well-behaved, as a geometric mean over workloads. One
setting serves all workloads, as in an installation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import geometric_mean
from typing import Any

from fairserve.benchmarks.reproduce.composition.workloads import (
    SATISFIED,
    TAIL,
    THROUGHPUT,
    WORKLOADS,
    setting_text,
    simulate_cell,
)
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, measure
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

FIRST_SEED = 100
WORKERS = 2
_LEAST = 0.01
"""Minimum satisfaction in the score, for clients that were served nothing."""

Options = Mapping[str, Any]


def _grid(**values: Sequence[Any]) -> list[Options]:
    """Return all combinations. A double underscore stands for a dot."""
    names = [name.replace("__", ".") for name in values]
    return [dict(zip(names, chosen, strict=True)) for chosen in product(*values.values())]


GRIDS: Mapping[str, Sequence[Options]] = {
    "vtc": [{}, {"local.predict": "mean"}],
    "preble": _grid(router__exploit_share=(0.3, 0.5, 0.7)),
    "cache-aware": _grid(router__balance_abs=(8, 16, 64)),
    "cache-aware-vtc": _grid(router__balance_abs=(8, 16, 64)),
    "d2lpm": [
        *_grid(local__quantum=(250, 1000, 5000), router__quantum_prompts=(20, 400, 1600)),
        {"local.quantum": 1000, "router.quantum_prompts": 400, "feed_window": 0.05},
    ],
}
TUNED: Mapping[str, Options] = {
    "vtc": {"local.predict": "mean"},
    "preble": {"router.exploit_share": 0.5},
    "cache-aware": {"router.balance_abs": 16},
    "cache-aware-vtc": {"router.balance_abs": 8},
    "d2lpm": {"local.quantum": 250, "router.quantum_prompts": 400},
}
"""Best setting of each grid."""

COLUMNS = (
    Column("tok/s", lambda figures: figures[THROUGHPUT.name], 0),
    Column("p99 TTFT (s)", lambda figures: figures[TAIL.name], 2),
    Column("satisfied, least", lambda figures: figures[SATISFIED.name], 3),
    Column("product", lambda figures: score(figures), 1),
)
"""Columns of geometric means over the workloads."""


def tuned(name: str) -> SystemConfig:
    """Return a system with its best setting."""
    found: SystemConfig = SYSTEMS[name]
    return found.with_options(TUNED[name])


def score(figures: Mapping[str, float]) -> float:
    """Return the score of a setting; greater is better."""
    return figures[THROUGHPUT.name] * figures[SATISFIED.name] / figures[TAIL.name]


def tuning(
    setting: Setting,
    grids: Mapping[str, Sequence[Options]] = GRIDS,
    workloads: Iterable[str] = tuple(WORKLOADS),
) -> Report:
    """Return a report with a row per setting, and the best one of each system."""
    setting = replace(setting, first_seed=FIRST_SEED)
    labels = {
        f"{name} {_text(options)}": (name, options)
        for name, grid in grids.items()
        for options in grid
    }
    systems = {
        label: SYSTEMS[name].with_options(options) for label, (name, options) in labels.items()
    }
    cells = [simulate_cell(setting, workload, WORKERS, systems) for workload in workloads]
    rows = {}
    for label in labels:
        of_seeds = [
            {
                column.name: geometric_mean(
                    max(_LEAST, column.of(cell[label][seed])) for cell in cells
                )
                for column in (THROUGHPUT, TAIL, SATISFIED)
            }
            for seed in range(setting.seeds)
        ]
        rows[label] = Row(label, measure(COLUMNS, of_seeds))
    return Report(
        "tuning",
        "the best settings of the systems that the default is compared with",
        f"{setting_text(setting)} Here on {WORKERS} workers, with seeds {FIRST_SEED} and up.",
        COLUMNS,
        list(rows.values()),
        [_best(name, labels, rows) for name in grids],
    )


def _best(system: str, labels: Mapping[str, tuple[str, Options]], rows: Mapping[str, Row]) -> Check:
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
