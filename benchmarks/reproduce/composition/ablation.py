"""``ablation``: the default without one of its mechanisms at a time.

The value of a mechanism shows when it is missing. Rows are relative to the default under the same
seed, over the workloads of the cells on one and on four workers. A mechanism is justified if
without it some cell is worse under every seed. These workloads set no limits, so OIT has nothing to
reject in them; its effect is in ``fairserve-table3``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean

from fairserve.benchmarks.reproduce.composition.workloads import (
    COLUMNS,
    COMPARED,
    OURS,
    SATISFIED,
    TAIL,
    THROUGHPUT,
    WORKLOADS,
    Compared,
    setting_text,
    simulate_cell,
)
from fairserve.benchmarks.reproduce.entitlement import Summary
from fairserve.benchmarks.reproduce.report import (
    Check,
    Column,
    Report,
    Row,
    Spread,
    measure,
    ratio,
    spread,
)
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

Cell = tuple[str, int]
"""A workload and the number of workers."""
WORKERS = (1, 4)
DEFAULT = "default"
OIT = "OIT off"

SUMMARY = (
    Column("tok/s", lambda ratios: geometric_mean(ratios[THROUGHPUT.name]), 3),
    Column("worst cell", lambda ratios: min(ratios[THROUGHPUT.name]), 3),
    Column("p99 TTFT", lambda ratios: geometric_mean(ratios[TAIL.name]), 3),
    Column("its worst cell", lambda ratios: max(ratios[TAIL.name]), 2),
    Column("satisfied, least", lambda ratios: fmean(ratios[SATISFIED.name]), 3),
    Column("and its worst cell", lambda ratios: min(ratios[SATISFIED.name]), 3),
)
"""Columns computed from the ratios to the default of one seed, by figure, one per cell."""


def variants() -> dict[str, SystemConfig]:
    """Return the default and its variants without one mechanism, by the replacement's name."""
    ours: SystemConfig = SYSTEMS[OURS]
    weights = {"feeder.beta": 1.0, "feeder.gamma": 2.0}
    return {
        DEFAULT: ours,
        "D2LPM: cache_aware, balance_abs=16": replace(
            ours, router="cache_aware", router_options={"balance_abs": 16}
        ),
        "DLPM: LPM": replace(ours, local="lpm", local_options={}),
        "DLPM: FCFS": replace(ours, local="fcfs", local_options={}),
        "WSC: VTC": replace(ours, feeder="vtc", feeder_options={}),
        "profiles: tokens": ours.with_options({"feeder.currency": "tokens", **weights}),
        OIT: replace(ours, throttle="none", throttle_options={}),
        "no feed window": ours.with_options({"feed_window": None}),
        "no memory for runs": ours.with_options({"resident_share": None}),
        "no locality slack": ours.with_options({"feeder.locality_slack": 0.0}),
    }


def ablation(
    setting: Setting,
    workers: Sequence[int] = WORKERS,
    workloads: Iterable[str] = tuple(WORKLOADS),
) -> list[Report]:
    """Return a report of ratios to the default, and one of the cells."""
    systems = variants()
    cells: dict[Cell, dict[str, list[Summary]]] = {
        (workload, number): simulate_cell(setting, workload, number, systems)
        for workload in workloads
        for number in workers
    }
    ratios = {
        name: [_ratios(cells, name, seed) for seed in range(setting.seeds)] for name in systems
    }
    rows = [Row(name, measure(SUMMARY, of_seeds)) for name, of_seeds in ratios.items()]
    text = setting_text(setting)
    title = "the default without one of its mechanisms"
    each = [
        Row(f"{workload} D={number} {name}", measure(COLUMNS, of_seeds))
        for (workload, number), of_systems in cells.items()
        for name, of_seeds in of_systems.items()
    ]
    return [
        Report(
            "ablation",
            title,
            f"{text} Here on {' and '.join(map(str, workers))} workers. Relative to the default under "
            "the same seed: geometric means over the cells (of what the least satisfied client has, "
            "means), and the worst cell.",
            SUMMARY,
            rows,
            [
                earns(name, list(cells), ratios[name])
                for name in systems
                if name not in (DEFAULT, OIT)
            ],
        ),
        Report("ablation-cells", title, text, COLUMNS, each, []),
    ]


def _ratios(
    cells: Mapping[Cell, Mapping[str, Sequence[Summary]]], name: str, seed: int
) -> dict[str, list[float]]:
    """Return the ratios by figure, one per cell."""
    return {
        column.name: [
            ratio(column.of(of[name][seed]), column.of(of[DEFAULT][seed])) for of in cells.values()
        ]
        for column, _ in COMPARED
    }


def earns(
    name: str, cells: Sequence[Cell], ratios: Sequence[Mapping[str, Sequence[float]]]
) -> Check:
    """Check that without it some figure of some cell is worse under every seed, with the maximum."""
    worse = []
    for compared in COMPARED:
        found = [
            (seen, cell)
            for place, cell in enumerate(cells)
            if _worse(
                seen := spread(of_seed[compared.column.name][place] for of_seed in ratios), compared
            )
        ]
        if found:
            seen, cell = (min if compared.high else max)(found)
            at = f"{cell[0]} D={cell[1]}"
            worse.append(f"{compared.column.name} {seen.value:.2f} times in {at}")
    return Check(f"{name}: something is worse without", bool(worse), "; ".join(worse) or "nothing")


def _worse(ratio: Spread, compared: Compared) -> bool:
    return ratio.greatest < 1.0 if compared.high else ratio.least > 1.0
