"""Short cases: one short run of each family of reproductions, with committed figures.

A simulation gives the same figures everywhere, so a different figure means a different coefficient,
workload or scheduling decision. The committed figures are in ``benchmarks/short_cases.json``
(:mod:`fairserve.benchmarks.evidence.origin`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from fairserve.benchmarks.evidence.origin import Figures
from fairserve.benchmarks.reproduce.default import ablation, headline, memory, tuning
from fairserve.benchmarks.reproduce.default.cells import chat, headline_cells
from fairserve.benchmarks.reproduce.dlpm.figures import dlpm_figure1, dlpm_figure7
from fairserve.benchmarks.reproduce.fairserve.paper import fairserve_paper
from fairserve.benchmarks.reproduce.profiles.backlogged_apps import RECORDED
from fairserve.benchmarks.reproduce.profiles.contest import honest_runs
from fairserve.benchmarks.reproduce.profiles.levers import CAPPED, DECLARES, LEVERS, profiles
from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.vtc.figures import synthetic_figure
from fairserve.benchmarks.reproduce.vtc.tables import vtc_table2, vtc_tables
from fairserve.benchmarks.traces.generate.vtc_suites import generate_vtc_suite
from fairserve.engine.simulated.traces.model import Trace


class _Generated(Setting):
    """Setting with generated runs in place of recorded traces: of an app, else of three clients."""

    __slots__ = ()

    def recorded(self, name: str) -> Trace:
        for app, file in RECORDED.items():
            if file == name:
                return Trace(app, 16, tuple(honest_runs(app, 0, 300.0)))
        return generate_vtc_suite("three-clients", 0, until_s=120.0)


@cache
def _of_mix() -> Mapping[str, Report]:
    """Return the reports of three of the cases, which are about one run."""
    parts = ("table3", "figure8", "figure9")
    return dict(zip(parts, fairserve_paper(_short(0.1), parts), strict=True))


SHORT_CASES: Mapping[str, Callable[[], Report | Sequence[Report]]] = {
    "vtc-table2": lambda: vtc_table2(_Generated(seeds=1, scale=0.2)),
    "vtc-tables": lambda: vtc_tables(_Generated(seeds=1, scale=0.2)),
    "vtc-figure3": lambda: synthetic_figure(_short(0.2), 3),
    "vtc-figure16": lambda: synthetic_figure(_short(0.2), 16),
    "dlpm-figure1": lambda: dlpm_figure1(_short(0.1), (1_000,)),
    "dlpm-figure7": lambda: dlpm_figure7(_short(0.05), workers=(1,)),
    "fairserve-table3": lambda: _of_mix()["table3"],
    "fairserve-table4": lambda: fairserve_paper(_short(0.2), ["table4"])[0],
    "fairserve-figure8": lambda: _of_mix()["figure8"],
    "fairserve-figure9": lambda: _of_mix()["figure9"],
    "profiles": lambda: profiles(
        _Generated(seeds=1, scale=0.2),
        {DECLARES: LEVERS[DECLARES]},
        {name: lever for name, lever in CAPPED.items() if "weight_cap 1: 1,024" in name},
    ),
    "headline": lambda: headline.headline_of(
        _short(0.1), headline_cells(_short(0.1), _generated_agents)
    ),
    "tuning": lambda: tuning.tuning_of(_short(0.1), {"chat": chat(_short(0.1))}, _only_tuned()),
    "memory": lambda: memory.memory_of(
        _short(0.25), memory.generated_cells(_short(0.25), (2.2,), (1,))
    ),
    "ablation": lambda: ablation.reports_of(
        _short(0.05), {"chat": chat(_short(0.05))}, ablation.variants()
    )[1],
}
"""Short cases by name: runs of seconds, without recorded traces."""

RELATIVE, ABSOLUTE = 1e-5, 6e-5
"""Tolerances within which figures are equal; processors round differently."""


def _generated_agents(setting: Setting, working_set: float) -> memory.MemoryCell:
    return memory.generated_cells(replace(setting, scale=0.25), (working_set,), (4,))[0]


def _short(scale: float) -> Setting:
    return Setting(seeds=1, scale=scale)


def _only_tuned() -> dict[str, list[headline.Options]]:
    return {name: [options] for name, options in headline.TUNED.items()}


def figures_of(name: str) -> Figures:
    """Run a case and return its figures, rounded. Raises KeyError for an unknown name.

    Rows of several reports have the title of theirs in front: systems are in each of them.
    """
    made = SHORT_CASES[name]()
    reports = [made] if isinstance(made, Report) else made
    return {
        row.name if isinstance(made, Report) else f"{report.title}: {row.name}": {
            column: round(seen.value, 4) for column, seen in report.shown(row).items()
        }
        for report in reports
        for row in report.rows
    }


def differences(seen: Figures, committed: Figures) -> list[str]:
    """Return one line for each row and column in which two results of a case differ."""
    lines = []
    for row in committed.keys() | seen.keys():
        was, now = committed.get(row, {}), seen.get(row, {})
        lines += [
            f"{row}, {column}: {was.get(column, 'nothing')} committed, {now.get(column, 'nothing')} now"
            for column in was.keys() | now.keys()
            if not _same(was.get(column), now.get(column))
        ]
    return sorted(lines)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
