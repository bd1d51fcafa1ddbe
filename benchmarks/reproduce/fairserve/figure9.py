"""Figure 9 of the FairServe paper: throughput and time to first token, app by app.

Figures are of the well-behaved users of each app; the abusers' own service would hide the effect on
the others. The paper's figure has no numbers; its text has the ranges 1.03 to 1.75 and 1.03 to
1.06.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import geometric_mean, median
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.checks import Simulated, measured
from fairserve.benchmarks.reproduce.fairserve.mix import (
    FS,
    FS_MENDED,
    OURS,
    RPM,
    setting_text,
    simulated_mix,
)
from fairserve.benchmarks.reproduce.fairserve.plots import draw_apps
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row
from fairserve.benchmarks.reproduce.setting import Setting

_SYSTEMS = (RPM, "vtc", FS, FS_MENDED, OURS)


def _rate(app: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda summary: float(summary["apps"][app]["tokens_per_s"])


def _ttft(app: str) -> Callable[[Mapping[str, Any]], float]:
    def value(summary: Mapping[str, Any]) -> float:
        mean = summary["apps"][app]["ttft_s"]["mean"]
        return math.nan if mean is None else float(mean)

    return value


def fairserve_figure9(setting: Setting) -> Report:
    """Return a report with a row per app and system."""
    simulated = simulated_mix(setting)
    apps = sorted(simulated[FS][0]["apps"], key=_natural)
    columns = (Column("tok/s", _rate(""), 1), Column("TTFT (s)", _ttft(""), 2))
    rows = []
    for app in apps:
        of_app = (Column("tok/s", _rate(app), 1), Column("TTFT (s)", _ttft(app), 2))
        rows += [
            Row(f"{app}, {system}", measured(of_app, simulated[system])) for system in _SYSTEMS
        ]
    checks = []
    for fs in (FS, FS_MENDED, OURS):
        for other in (RPM, "vtc"):
            checks += [
                _every_app(simulated, apps, fs, other, _rate, "a higher throughput", 1.0),
                _every_app(simulated, apps, fs, other, _ttft, "a lower TTFT", -1.0),
            ]
    text = (
        f"{setting_text(setting)} Figures are of the well-behaved users of each app; TTFT of the calls "
        "that had a first token. A claim compares the medians of the seeds."
    )
    drawn = []
    if setting.plots is not None:
        path = setting.plots / "fairserve-figure9.png"
        drawn = draw_apps(path, apps, _SYSTEMS, {row.name: row for row in rows}, columns)
    title = "FairServe, throughput and time to first token of each app"
    return Report("fairserve-figure9", title, text, columns, rows, checks, drawn)


def _natural(app: str) -> tuple[str, int]:
    kind, _, number = app.rpartition("-")
    return kind, int(number)


def _every_app(
    simulated: Simulated,
    apps: list[str],
    fs: str,
    other: str,
    of: Callable[[str], Callable[[Mapping[str, Any]], float]],
    what: str,
    sign: float,
) -> Check:
    """Check that the ratio of two systems is above 1 in every served app (below for -1)."""
    ratios = {}
    for app in apps:
        of_system = []
        for name in (fs, other):
            values = [value for value in map(of(app), simulated[name]) if value > 0]
            of_system.append(median(values) if values else 0.0)
        if all(of_system):
            ratios[app] = (of_system[0] / of_system[1]) ** sign
    wrong = [app for app, ratio in ratios.items() if ratio <= 1]
    if not ratios:
        return Check(f"{fs} has {what} than {other} in every app", False, "no app was served")
    seen = (
        f"{min(ratios.values()):.2f} to {max(ratios.values()):.2f} times, geometric mean "
        f"{geometric_mean(ratios.values()):.2f}"
    )
    if wrong:
        seen += f"; not in {', '.join(wrong)}"
    return Check(f"{fs} has {what} than {other} in every app", not wrong, seen)
