"""``fairserve-paper``: Tables 3 and 4 and Figures 8 and 9 of the FairServe paper, one page.

Workload, published values and statements are in ``paper.toml``. Table 3 and the figures share one
simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.workload import (
    STUDY,
    simulate_mix,
    simulate_three_apps,
    text_values,
)
from fairserve.benchmarks.reproduce.report import Report, ReportColumn, ratio
from fairserve.benchmarks.reproduce.setting import Setting, Summaries
from fairserve.benchmarks.reproduce.study import at, columns_of, report_of

REPORTS = {entry["name"].removeprefix("fairserve-"): entry for entry in STUDY["report"]}
"""Entries of the file: table3, table4, figure8 and figure9."""
_GAINS = {name: ReportColumn(name, at(name), 2) for name in REPORTS["figure9"]["columns"]}
_COLUMNS = columns_of(STUDY["columns"]) | _GAINS


def fairserve_paper(setting: Setting, parts: Sequence[str] = tuple(REPORTS)) -> list[Report]:
    """Return these parts of the page."""
    mix = simulate_mix(setting) if set(parts) - {"table4"} else {}
    reports = []
    for part in parts:
        runs = simulate_three_apps(setting) if part == "table4" else mix
        if part == "figure9":
            seeds = range(setting.seeds)
            apps = mix["fs-wi"][0]["apps"]
            runs = {app: [_gains(mix, app, seed) for seed in seeds] for app in apps}
        entry = REPORTS[part]
        reports.append(report_of(entry, _COLUMNS, setting, runs, **text_values(setting)))
    return reports


def _gains(mix: Summaries, app: str, seed: int) -> dict[str, float]:
    """Return the gains of FairServe in an app under a seed, over other systems under the same seed."""
    gains = {}
    for ours, other in product(("fs-wi", "fairserve"), ("rpm", "vtc")):
        mine, others = (mix[name][seed]["apps"][app] for name in (ours, other))
        rate = ratio(mine["tokens_per_s"], others["tokens_per_s"])
        gains[f"throughput: {ours} / {other}"] = rate
        gains[f"1 / TTFT: {ours} / {other}"] = _ttft_s(others) / _ttft_s(mine)
    return gains


def _ttft_s(app: Mapping[str, Any]) -> float:
    mean = app["ttft_s"]["mean"]
    return math.nan if mean is None else float(mean)
