"""Convergence of the profiles of apps that declare ten times too much or too little.

There are two settings, so that each app is once declared too large and once too small, each without
and with learning. They are compared with the true profiles from the start, which show the remaining
error, and with the app of the most varied calls alone, with all its runs, since few of them end in
the time of the others. The statements (``study.toml``) are about the requirements of the service: few
interactions are enough, and afterwards shares are those of correct profiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fairserve.benchmarks.plots import BLACK, PlotLine, PlotPanel, color
from fairserve.benchmarks.reproduce.profiles.backlogged_apps import (
    AT_A_TIME,
    COSTS,
    DURATION_S,
    LATER_S,
    RECORDED,
    backlogged,
    job,
)
from fairserve.benchmarks.reproduce.profiles.service import LEARNING_INTERVAL_S
from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Setting, Summaries
from fairserve.benchmarks.reproduce.study import columns_of, drawn, read_study, report_of
from fairserve.benchmarks.simulate.declared import larger
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions

_STUDY = read_study(__file__, "study.toml")
_ENTRY = _STUDY["report"][0]
APPS = tuple(RECORDED)
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "first": dict(zip(APPS, (10.0, 0.1, 10.0), strict=True)),
    "second": dict(zip(APPS, (0.1, 10.0, 0.1), strict=True)),
}
"""Factor on the true profile that each app declares."""
_NEAR = 1.25
"""Factor within which the size of an app's calls is known."""
_AFTER = 1 / 3
"""Last part of the time, in which shares are compared: excess charges from before learning have
been compensated by then."""
_SLOWEST = "autocoderover"
"""App with the most varied calls, of whose runs few end in the time of the others."""
LONG = f"{_SLOWEST} alone"
Summary = Mapping[str, Any]


def convergence(setting: Setting) -> Report:
    """Run three apps on one worker."""
    traces = [backlogged(setting, seed) for seed in range(setting.seeds)]
    jobs = {"right": _jobs(setting, traces, None, None)}
    for name, factors in SETTINGS.items():
        jobs[f"{name} declared"] = _jobs(setting, traces, factors, None)
        jobs[f"{name} learned"] = _jobs(setting, traces, factors, LearningOptions())
    for factor in (10.0, 0.1):
        jobs[f"{LONG}, {_how(factor)}"] = _long_jobs(setting, factor)
    found = setting.summaries(jobs)
    runs: Summaries = {}
    for name, factors in SETTINGS.items():
        three = [found[key] for key in (f"{name} declared", f"{name} learned", "right")]
        for app, factor in factors.items():
            runs[f"{app}, {_how(factor)}"] = [
                _seen(app, *seed) for seed in zip(*three, strict=True)
            ]
    for factor in (10.0, 0.1):
        name = f"{LONG}, {_how(factor)}"
        runs[name] = [learned_of(_SLOWEST, summary) for summary in found[name]]
    report = report_of(
        _ENTRY,
        columns_of(_STUDY["columns"]),
        setting,
        runs,
        costs=COSTS,
        at_a_time=", ".join(f"{number} {app}" for app, number in AT_A_TIME.items()),
        duration_s=DURATION_S * setting.scale,
        interval_s=LEARNING_INTERVAL_S,
        alone=len(long_run(setting, 0)),
    )
    first = {name: seeds[0] for name, seeds in found.items()}
    layout = {"width": 5.6, "height": 2.7, "across": len(SETTINGS)}
    return drawn(setting, report, _panels(first), **layout)


def _jobs(
    setting: Setting,
    traces: Sequence[Trace],
    factors: Mapping[str, float] | None,
    learning: LearningOptions | None,
) -> list[SimulationJob]:
    jobs = []
    for seed, trace in enumerate(traces):
        declared = wrongly(profiles_of(trace), factors) if factors else {}
        jobs.append(job(setting, trace, seed, declared, learning))
    return jobs


def _how(factor: float) -> str:
    return "10x too large" if factor > 1 else "10x too small"


def long_run(setting: Setting, seed: int) -> Trace:
    """Return a trace with each recorded run of the slowest app once."""
    trace = backlogged(setting, seed, times=1)
    runs = [run for run in trace.interactions if run.app == _SLOWEST]
    return trace.with_interactions(runs[: max(2, round(len(runs) * setting.scale))])


def _long_jobs(setting: Setting, factor: float) -> list[SimulationJob]:
    jobs = []
    for seed in range(setting.seeds):
        trace = long_run(setting, seed)
        declared = wrongly(profiles_of(trace), {_SLOWEST: factor})
        long = job(setting, trace, seed, declared, LearningOptions())
        jobs.append(replace(long, options=replace(long.options, until_s=LATER_S / 2)))
    return jobs


def wrongly(true: Mapping[str, AppProfile], factors: Mapping[str, float]) -> dict[str, AppProfile]:
    """Return profiles with tokens and calls multiplied, without the variation of run lengths."""
    return {app: larger(true[app], factor) for app, factor in factors.items()}


def share_of(app: str, summary: Summary) -> float:
    """Return the app's service over its equal share, in the last part of the time."""
    served: Mapping[str, Sequence[float]] = summary["typical_per_s"]
    begin = round(len(served[app]) * (1 - _AFTER))
    return len(served) * fmean(served[app][begin:]) / sum(fmean(v[begin:]) for v in served.values())


def learned_of(app: str, summary: Summary) -> dict[str, float]:
    """Return the time after which the size of the app's calls was known."""
    held = summary["profiles"][app]
    factors = [max(each["factor"], 1 / each["factor"]) for each in held]
    near = next((n for n, factor in enumerate(factors) if factor <= _NEAR), len(held))
    good = max((n + 1 for n, factor in enumerate(factors) if factor > _NEAR), default=0)
    return {
        "first": float(held[near]["interactions"]) if near < len(held) else math.inf,
        "first_s": held[near]["since_s"] if near < len(held) else math.inf,
        "interactions": float(held[good]["interactions"]) if good < len(held) else math.inf,
        "worst": max(factors[near:], default=math.inf),
        "changes": float(len(held)),
    }


def _seen(app: str, declared: Summary, learned: Summary, right: Summary) -> dict[str, Any]:
    three = {"declared": declared, "learned": learned, "right": right}
    shares = {name: share_of(app, summary) for name, summary in three.items()}
    return {**learned_of(app, learned), "share": shares}


def _panels(runs: Mapping[str, Summary]) -> Iterator[PlotPanel]:
    """Yield a column per setting: shares by declared and learned profiles, learned factors."""
    for learned in (False, True):
        for name, factors in SETTINGS.items():
            wrong = ", ".join(f"{app} {factor:g}x" for app, factor in factors.items())
            title = f"Declared {wrong}\n\nService: the declared profiles hold"
            summary = runs[f"{name} {'learned' if learned else 'declared'}"]
            served: Mapping[str, Sequence[float]] = summary["typical_per_s"]
            totals = [max(sum(each), 1e-9) for each in zip(*served.values(), strict=True)]
            width_s = summary["duration_s"] / len(totals)
            times_s = [(number + 0.5) * width_s for number in range(len(totals))]
            lines = [
                PlotLine(
                    app,
                    times_s,
                    [
                        len(served) * each / total
                        for each, total in zip(values, totals, strict=True)
                    ],
                    {"color": color(number)},
                )
                for number, (app, values) in enumerate(served.items())
            ]
            yield PlotPanel(
                "Service: profiles are learned" if learned else title,
                "time (s)",
                "times its share",
                lines,
                level=1.0,
                y_range=(0, 3.1),
            )
    for name in SETTINGS:
        summary = runs[f"{name} learned"]
        lines = []
        for number, (app, held) in enumerate(summary["profiles"].items()):
            times_s = [*(each["since_s"] for each in held), summary["duration_s"]]
            sizes = [each["factor"] for each in held]
            style = {"color": color(number), "drawstyle": "steps-post"}
            lines.append(PlotLine(app, times_s, [*sizes, sizes[-1]], style))
        near = {"color": BLACK, "linewidth": 0.6, "linestyle": ":"}
        ends = [0.0, summary["duration_s"]]
        lines += [PlotLine(None, ends, [each] * 2, near) for each in (1 / _NEAR, _NEAR)]
        yield PlotPanel(
            "Typical call by the profile in force (dotted: within 25 %)",
            "time (s)",
            "times the true",
            lines,
            level=1.0,
            y_ticks=(0.1, 0.25, 0.5, 1, 2, 4, 10),
            y_range=(0.08, 13),
        )
