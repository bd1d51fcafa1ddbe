"""``ablation``: the default without one of its mechanisms at a time, in the cells of ``headline``.

The value of a mechanism shows when it is missing. Each figure is relative to the default under the same
seed. A mechanism earns its place if without it some figure of some cell is worse under every seed, by
``_CLEARLY`` in the median.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, median
from typing import Any

from fairserve.benchmarks.reproduce.default.cells import WorkloadCell, headline_cells
from fairserve.benchmarks.reproduce.default.headline import COLUMNS, REPORTS, simulate
from fairserve.benchmarks.reproduce.report import Check, Report, ratio
from fairserve.benchmarks.reproduce.setting import Setting, Summaries
from fairserve.benchmarks.reproduce.study import report_of
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

DEFAULT = "default"
_CLEARLY = 0.03
"""Change of a figure, relative or of a satisfied part, that is more than noise."""
_LEAST_RATIO = 0.01

_LOSSES: Mapping[str, Callable[[float], float]] = {
    "tok/s in time": lambda ratio: 1.0 - ratio,
    "least satisfied": lambda change: -change,
    "tail (s)": lambda ratio: ratio - 1.0,
}
"""By column, how much worse a figure is that is relative to the default's."""

Relative = Mapping[str, Sequence[float]]
"""Figures of one seed relative to the default's, by column, one for each cell: ratios, of the satisfied
part differences."""


def variants() -> dict[str, SystemConfig]:
    """Return the default and its variants without one mechanism, by the replacement's name."""
    ours: SystemConfig = SYSTEMS["fairserve"]
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
    relative = {
        name: [_relative(summaries, cells, name, seed) for seed in range(setting.seeds)]
        for name in systems
    }
    means = {name: [summary_of(each) for each in of_seeds] for name, of_seeds in relative.items()}
    checks = [
        earns(name, list(cells), of_seeds) for name, of_seeds in relative.items() if name != DEFAULT
    ]
    each = report_of(REPORTS["ablation-cells"], COLUMNS, setting, summaries)
    return [replace(report_of(REPORTS["ablation"], COLUMNS, setting, means), checks=checks), each]


def _relative(
    summaries: Summaries, cells: Mapping[str, WorkloadCell], name: str, seed: int
) -> Relative:
    """Return the figures of one seed relative to the default's."""
    pairs = [
        (summaries[f"{cell}: {name}"][seed], summaries[f"{cell}: {DEFAULT}"][seed])
        for cell in cells
    ]
    return {
        "tok/s in time": [ratio(own["tokens_per_s"], ours["tokens_per_s"]) for own, ours in pairs],
        "tail (s)": [ratio(own["tail_s"], ours["tail_s"]) for own, ours in pairs],
        "least satisfied": [
            own["least_satisfied"] - ours["least_satisfied"] for own, ours in pairs
        ],
    }


def summary_of(relative: Relative) -> dict[str, Any]:
    """Return the means and extremes over the cells; nothing at all counts as ``_LEAST_RATIO``."""
    work, tail, least = (
        relative[each] for each in ("tok/s in time", "tail (s)", "least satisfied")
    )
    return {
        "work": geometric_mean(max(_LEAST_RATIO, each) for each in work),
        "work_worst": min(work),
        "tail": geometric_mean(max(_LEAST_RATIO, each) for each in tail),
        "tail_worst": max(tail),
        "least": fmean(least),
        "least_worst": min(least),
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
