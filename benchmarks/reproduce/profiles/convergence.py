"""Convergence of the profiles of apps that declare ten times too much or too little.

There are two settings, so that each app is once declared too large and once too small, each without
and with learning. They are compared with the true profiles from the start, which show the remaining
error, and with the app of the most varied calls alone, with all its runs, since few of them end in
the time of the others. The claims are about the requirements of the service: few interactions are
enough, and afterwards shares are those of correct profiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

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
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ReportRow, measure
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.simulate.declared import larger
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions

APPS = tuple(RECORDED)
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "first": dict(zip(APPS, (10.0, 0.1, 10.0), strict=True)),
    "second": dict(zip(APPS, (0.1, 10.0, 0.1), strict=True)),
}
"""Factor on the true profile that each app declares."""
NEAR = 1.25
INTERACTIONS = 200
"""Number of interactions after which the size of an app's calls is known within :data:`NEAR`."""
_AFTER = 1 / 3
"""Last part of the time, in which shares are compared: excess charges from before learning have
been compensated by then."""

COLUMNS = (
    ReportColumn("known after interactions", lambda seen: seen["first"]),
    ReportColumn("after s", lambda seen: seen["first_s"]),
    ReportColumn("for good after", lambda seen: seen["interactions"]),
    ReportColumn("worst factor from known on", lambda seen: seen["worst"], 2),
    ReportColumn("profiles that held", lambda seen: seen["changes"]),
    ReportColumn("share, declared only", lambda seen: seen["share"]["declared"], 2),
    ReportColumn("share, learned", lambda seen: seen["share"]["learned"], 2),
    ReportColumn("share, right from the start", lambda seen: seen["share"]["right"], 2),
)
_FIRST, _, _KNOWN, _WORST, _, _DECLARED, _LEARNED, _RIGHT = COLUMNS
_LEARNING = COLUMNS[:5]
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
    runs = setting.summaries(jobs)
    rows = []
    for name, factors in SETTINGS.items():
        three = [runs[key] for key in (f"{name} declared", f"{name} learned", "right")]
        for app, factor in factors.items():
            seen = [_seen(app, *seed) for seed in zip(*three, strict=True)]
            rows.append(ReportRow(f"{app}, {_how(factor)}", measure(COLUMNS, seen)))
    for factor in (10.0, 0.1):
        name = f"{LONG}, {_how(factor)}"
        known = [learned_of(_SLOWEST, summary) for summary in runs[name]]
        rows.append(ReportRow(name, measure(_LEARNING, known)))
    plots: list[str] = []
    if setting.plots is not None:
        from fairserve.benchmarks.reproduce.profiles.convergence_plot import draw_convergence

        first = {name: seeds[0] for name, seeds in runs.items()}
        plots = [draw_convergence(setting.plots / "profiles.png", SETTINGS, first)]
    duration_s = DURATION_S * setting.scale
    text = (
        f"Cost model {COSTS.name}, one worker, batches of {COSTS.max_running}, KV cache of "
        f"{COSTS.kv_capacity_tokens:,} tokens, so that calls wait at the feeder. Recorded runs of three "
        "apps, each a tenant's, in a closed loop ("
        + ", ".join(f"{number} {app}" for app, number in AT_A_TIME.items())
        + f" at a time), {duration_s:g} s. Learned: every {LEARNING_INTERVAL_S:g} s. Known: the "
        f"typical size of its calls, over the true one, is within {NEAR - 1:.0%}; how many interactions "
        "of it had ended by then, by when it is so for good (inf: not in that time), and the worst "
        "factor from then on. Share: "
        "service over a third of all, both in true typical calls, in the last third of the time. "
        f"Alone: all {len(long_run(setting, 0))} runs of that app, on a worker for it alone. Medians of "
        f"{setting.seeds} seeds (order of the runs, decode step up to 2 % off), with least and greatest."
    )
    title = "apps that declare ten times too much or too little"
    return Report("profiles", title, text, COLUMNS, rows, claims(rows), plots)


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
    near = next((n for n, factor in enumerate(factors) if factor <= NEAR), len(held))
    good = max((n + 1 for n, factor in enumerate(factors) if factor > NEAR), default=0)
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


WORST = 2.0
"""Maximum factor after the size is known: sizes differ between runs, and long runs end last."""
SHARE = 0.3
"""Maximum accepted deviation of an app from its share, as a fraction of it."""


def claims(rows: Sequence[ReportRow]) -> list[Check]:
    """Return the checks of every app, under every seed."""

    def furthest(column: ReportColumn, key: Any) -> tuple[float, str]:
        return max(
            (key(value), row.name)
            for row in rows
            if column.name in row.measured
            for value in row.measured[column.name]
        )

    def off(value: float) -> float:
        return abs(value - 1)

    known, slowest = max(
        (row.measured[_KNOWN.name].greatest, row.name)
        for row in rows
        if _SLOWEST not in row.name or LONG in row.name
    )
    first, _ = furthest(_FIRST, float)
    worst, strayed = furthest(_WORST, float)
    learned, least = furthest(_LEARNED, off)
    declared, most = furthest(_DECLARED, off)
    claim = f"an app's calls are known within {NEAR - 1:.0%} after {INTERACTIONS} interactions"
    after = f"for the first time after {first:.0f}, for good after {known:.0f}: {slowest}"
    never_off = f"from then on it is never off by more than {WORST:g} times"
    has_share = f"learned, every app has its share within {SHARE:.0%}"
    is_off = "with declared profiles only, an app is off its share by half at least"
    return [
        Check(claim, known <= INTERACTIONS, after),
        Check(never_off, worst <= WORST, f"{worst:.2f}: {strayed}"),
        Check(has_share, learned <= SHARE, f"off by {learned:.0%}: {least}"),
        Check(is_off, declared >= 0.5, f"off by {declared:.0%}: {most}"),
    ]
