"""``ablation``: the default without one of its mechanisms at a time, in the cells of ``headline``.

The value of a mechanism shows when it is missing. Each figure is relative to the default under the same
seed. A mechanism earns its place if without it some figure of some cell is worse under every seed, by
``_CLEARLY`` in the median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, median

from fairserve.benchmarks.reproduce.default.cells import WorkloadCell, headline_cells
from fairserve.benchmarks.reproduce.default.costs import OURS
from fairserve.benchmarks.reproduce.default.headline import (
    COLUMNS,
    LEAST,
    TAIL,
    WORK,
    Summaries,
    simulate,
)
from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    measure,
    ratio,
)
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

DEFAULT = "default"
_CLEARLY = 0.03
"""Change of a figure, relative or of a satisfied part, that is more than noise."""

_LEAST_RATIO = 0.01

_LOSSES: Mapping[str, Callable[[float], float]] = {
    WORK.name: lambda ratio: 1.0 - ratio,
    LEAST.name: lambda change: -change,
    TAIL.name: lambda ratio: ratio - 1.0,
}
"""By column, how much worse a figure is that is relative to the default's."""

Relative = Mapping[str, Sequence[float]]
"""Figures of one seed relative to the default's, by column, one for each cell: ratios, of the satisfied
part differences."""

SUMMARY = (
    ReportColumn("tok/s in time", lambda ratios: _mean_ratio(ratios[WORK.name]), 3),
    ReportColumn("worst cell", lambda ratios: min(ratios[WORK.name]), 3),
    ReportColumn("tail", lambda ratios: _mean_ratio(ratios[TAIL.name]), 3),
    ReportColumn("its worst cell", lambda ratios: max(ratios[TAIL.name]), 2),
    ReportColumn("least satisfied", lambda ratios: fmean(ratios[LEAST.name]), 3),
    ReportColumn("its worst change", lambda ratios: min(ratios[LEAST.name]), 3),
)
"""Columns of one seed, over the cells: ratios to the default, of the satisfied part differences."""


def _mean_ratio(ratios: Sequence[float]) -> float:
    """Return the geometric mean; nothing at all counts as ``_LEAST_RATIO``."""
    return geometric_mean(max(_LEAST_RATIO, each) for each in ratios)


def variants() -> dict[str, SystemConfig]:
    """Return the default and its variants without one mechanism, by the replacement's name."""
    ours: SystemConfig = SYSTEMS[OURS]
    weights = {"feeder.beta": 1.0, "feeder.gamma": 2.0}
    return {
        DEFAULT: ours,
        "routing by cache: least_loaded": replace(ours, router="least_loaded", router_options={}),
        "routing by cache: D2LPM": replace(
            ours, router="d2lpm", router_options={"quantum_prompts": 1600.0}
        ),
        "DLPM: LPM": replace(ours, local="lpm", local_options={}),
        "DLPM: FCFS": replace(ours, local="fcfs", local_options={}),
        "WSC: VTC": replace(ours, feeder="vtc", feeder_options={}, resident_share=None),
        "profiles: tokens": ours.with_options({"feeder.currency": "tokens", **weights}),
        "OIT off": replace(ours, throttle="none", throttle_options={}),
        "no feed window": ours.with_options({"feed_window": None}),
        "no memory for runs": ours.with_options({"resident_share": None}),
        "no locality slack": ours.with_options({"feeder.locality_slack": 0.0}),
        "no bound of bypasses": ours.with_options({"feeder.max_bypass": 0}),
    }


def ablation(setting: Setting) -> list[Report]:
    """Return a report of changes, and one of the cells. Raises TraceError without the traces."""
    return reports_of(setting, headline_cells(setting), variants())


def reports_of(
    setting: Setting, cells: Mapping[str, WorkloadCell], systems: Mapping[str, SystemConfig]
) -> list[Report]:
    """Return both reports for some cells and variants, of which one is ``DEFAULT``."""
    summaries = simulate(setting, cells, systems)
    rows, checks = [], []
    for name in systems:
        of_seeds = [_relative(summaries, cells, name, seed) for seed in range(setting.seeds)]
        rows.append(ReportRow(name, measure(SUMMARY, of_seeds)))
        if name != DEFAULT:
            checks.append(earns(name, list(cells), of_seeds))
    title = "the default without one of its mechanisms"
    text = (
        f"The cells of `headline`. Relative to the default under the same seed: geometric means over "
        f"the cells, of the least satisfied part the mean change. Medians of {setting.seeds} seeds with "
        "least and greatest."
    )
    each = [
        ReportRow(f"{cell}: {name}", measure(COLUMNS, of_seeds))
        for (cell, name), of_seeds in summaries.items()
    ]
    return [
        Report("ablation", title, text, SUMMARY, rows, checks),
        Report("ablation-cells", title, text, COLUMNS, each, []),
    ]


def _relative(
    summaries: Summaries, cells: Mapping[str, WorkloadCell], name: str, seed: int
) -> Relative:
    """Return the figures of one seed relative to the default's."""
    pairs = [(summaries[cell, name][seed], summaries[cell, DEFAULT][seed]) for cell in cells]
    return {
        WORK.name: [ratio(WORK.of(own), WORK.of(ours)) for own, ours in pairs],
        TAIL.name: [ratio(TAIL.of(own), TAIL.of(ours)) for own, ours in pairs],
        LEAST.name: [LEAST.of(own) - LEAST.of(ours) for own, ours in pairs],
    }


def earns(name: str, cells: Sequence[str], of_seeds: Sequence[Relative]) -> Check:
    """Check that without it some figure of some cell is clearly worse, with the largest change."""
    worse = []
    for column, loss in _LOSSES.items():
        losses = {
            cell: [loss(of_seed[column][place]) for of_seed in of_seeds]
            for place, cell in enumerate(cells)
        }
        found = [(median(each), cell) for cell, each in losses.items() if min(each) > 0.0]
        if found and max(found)[0] >= _CLEARLY:
            by, cell = max(found)
            worse.append(f"{column} by {by:.2f} in {cell}")
    return Check(f"{name}: something is worse without", bool(worse), "; ".join(worse) or "nothing")
