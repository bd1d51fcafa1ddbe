"""Gains of manipulated profiles, and the cost to others.

Every lever is tried twice: with declared profiles only, as in the paper, and with learned ones.
Gain is the cheat's useful work over its useful work when honest, in the same time, beside the same
honest tenants; the others' figure is their work over their work in the honest case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from fairserve.benchmarks.reproduce.profiles import attempts as by
from fairserve.benchmarks.reproduce.profiles.contest import (
    CHEAT,
    COSTS,
    DURATION_S,
    TENANTS,
    LeavingReplay,
    UsefulWork,
    contest,
    honest_runs,
    siblings,
)
from fairserve.benchmarks.reproduce.profiles.convergence import convergence
from fairserve.benchmarks.reproduce.profiles.service import LEARNING_INTERVAL_S
from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Setting, Summaries
from fairserve.benchmarks.reproduce.study import columns_of, read_study, report_of
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.profiles import profiles_of
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.interactions.profiles.profile import MOST_CALLS
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.scheduling.directory import NO_LIMITS
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

LIMITS = Limits(user_rpm=60)
"""Limits under overload, for levers against the throttle."""
_GAIN = 1.25
"""Gain of a window above which the lever works; honest windows differ by less."""
_LEARNING = LearningOptions()


@dataclass(frozen=True, slots=True)
class Lever:
    """A way to manipulate."""

    attempt: by.Try
    limits: Limits = NO_LIMITS
    leaves: bool = False
    trusted: bool = False
    """Trust every declaration: ``feeder.declared_trust`` is infinite."""
    weight_cap: float | None = None
    """``feeder.weight_cap`` of a contest between apps of one tenant; None: between tenants."""


MERGES = "merges 3 runs into one"
NEW_APPS = "declares 1000x, a new app every 4 runs"
STOCK = "declares 1000x, a stock of apps of 36 runs each"
NEW_APPS_TRUSTED = "declares 1000x, a new app every 4 runs, every declaration trusted"
FIRST = "pads its first 20 runs 10x"
DECLARES = "declares 10x"
ONE_RUN = "one endless run, under limits"

CONSTANT_PROMPTS: Mapping[str, Lever] = {
    **{
        f"a constant {kind} of {tokens:,} tokens, {'' if cached else 'not '}cached": Lever(
            by.constant_prompt(tokens, cached=cached, system=kind == "system prompt")
        )
        for kind, tokens, cached in (
            ("system prompt", 1024, True),
            ("system prompt", 4096, True),
            ("system prompt", 16_384, True),
            ("input", 16_384, True),
            ("system prompt", 1024, False),
            ("system prompt", 4096, False),
            ("system prompt", 16_384, False),
        )
    },
    "the same system prompt of 16,384 tokens in every third run": Lever(
        by.constant_prompt(16_384, cached=True, one_in=3)
    ),
}
"""Levers in which every call begins with the same tokens, declared truly."""

LEVERS: Mapping[str, Lever] = {
    DECLARES: Lever(by.declares(10)),
    "declares 1000x": Lever(by.declares(1000)),
    "declares 1000x from stage 3 on": Lever(by.declares(1000, from_stage=3)),
    "declares 1000x deep in endless runs": Lever(by.deep_runs(12, 1000)),
    NEW_APPS: Lever(by.new_apps(1000, 4)),
    STOCK: Lever(by.new_apps(1000, 36)),
    NEW_APPS_TRUSTED: Lever(by.new_apps(1000, 4), trusted=True),
    "declares 10x, cancels at the last token": Lever(by.declares(10), leaves=True),
    "declares endless runs, under limits": Lever(by.declares(1, calls=MOST_CALLS), LIMITS),
    ONE_RUN: Lever(by.one_run(1), LIMITS),
    "splits each call into 10": Lever(by.splits(10)),
    MERGES: Lever(by.merges(3)),
    "pads all prompts 10x": Lever(by.pads(10)),
    FIRST: Lever(by.pads(10, first=20)),
    "20 users instead of 2": Lever(by.invents_users(20)),
    "an invented user pads 20x, one run in 30": Lever(by.lets_others_pad(20, 30)),
    "names agents by size": Lever(by.names_agents),
    **CONSTANT_PROMPTS,
}
CAPPED: Mapping[str, Lever] = {
    f"apps of one tenant, weight_cap {cap:g}: {tokens:,} tokens, not cached": Lever(
        by.constant_prompt(tokens, cached=False, system=True), weight_cap=cap
    )
    for cap in (math.inf, 2.0, 1.0)
    for tokens in (1024, 4096, 16_384)
}
"""Levers in which one app pads its calls; the others are its siblings."""
Summary = Mapping[str, Any]
_STUDY = read_study(__file__, "study.toml")
_COLUMNS = columns_of(_STUDY["columns"])
_, _GAINS, _CAP = _STUDY["report"]


def profiles(
    setting: Setting,
    levers: Mapping[str, Lever] = LEVERS,
    capped: Mapping[str, Lever] = CAPPED,
) -> list[Report]:
    """Return a report of each part. Raises TraceError without the recorded traces."""
    return [convergence(setting), gains(setting, levers), cap(setting, capped)]


def gains(setting: Setting, levers: Mapping[str, Lever] = LEVERS) -> Report:
    """Compare each lever with honesty, with declared and with learned profiles."""
    return report_of(
        _GAINS,
        _COLUMNS,
        setting,
        _compared(setting, levers),
        costs=COSTS,
        duration_s=DURATION_S * setting.scale,
        limits=LIMITS,
        interval_s=LEARNING_INTERVAL_S,
    )


def cap(setting: Setting, levers: Mapping[str, Lever] = CAPPED) -> Report:
    """Compare ``weight_cap`` of the feeder for apps of one tenant, of which one pads its calls."""
    runs = _compared(setting, levers)
    return report_of(_CAP, _COLUMNS, setting, runs, duration_s=DURATION_S * setting.scale)


def _compared(setting: Setting, levers: Mapping[str, Lever]) -> Summaries:
    """Return the figures of each lever by its name, ``declared`` and ``learned``."""
    jobs: dict[str, list[SimulationJob]] = {}
    for name, lever in levers.items():
        for learned in (False, True):
            for each in (lever, _honest(lever)):
                jobs.setdefault(_key(each, name, learned), _jobs(setting, each, learned))
    runs = setting.summaries(jobs)
    return {
        name: [
            {
                word: compared(
                    runs[_key(lever, name, learned)][seed],
                    runs[_key(_honest(lever), name, learned)][seed],
                )
                for word, learned in (("declared", False), ("learned", True))
            }
            for seed in range(setting.seeds)
        ]
        for name, lever in levers.items()
    }


def _honest(lever: Lever) -> Lever:
    """Return the honest case under the same conditions."""
    return replace(lever, attempt=by.honest, leaves=False)


def _key(lever: Lever, name: str, learned: bool) -> str:
    tried = "honest" if lever.attempt is by.honest else name
    return f"{tried} {lever.limits.user_rpm} {learned} {lever.trusted} {lever.weight_cap}"


def _jobs(setting: Setting, lever: Lever, learned: bool) -> list[SimulationJob]:
    duration_s = DURATION_S * setting.scale
    jobs = []
    for seed in range(setting.seeds):
        attempt = lever.attempt(honest_runs(CHEAT, seed, duration_s))
        trace = contest(attempt.runs, seed, duration_s)
        system = SYSTEMS["fairserve"]
        if lever.trusted:
            system = system.with_options({"feeder.declared_trust": math.inf})
        if lever.weight_cap is not None:
            trace = siblings(trace)
            system = system.with_options({"feeder.weight_cap": lever.weight_cap})
        options = ReplayOptions(
            seed=seed,
            until_s=duration_s,
            limits=lever.limits,
            profiles=attempt.declared,
            learning=_LEARNING if learned else None,
            learning_interval_s=LEARNING_INTERVAL_S,
        )
        jobs.append(
            SimulationJob(
                "levers",
                trace,
                system,
                COSTS,
                options,
                watch=partial(
                    UsefulWork, attempt.useful, duration_s, profiles_of(trace), leaves=lever.leaves
                ),
                replay=LeavingReplay if lever.leaves else Replay,
            )
        )
    return jobs


def compared(tried: Summary, honest: Summary) -> dict[str, float]:
    """Return gain, the others' remaining work, late gain, and the last run with a gain."""

    def work(run: Summary, tenants: Sequence[str], begin: int = 0) -> float:
        return sum(fmean(run["done_per_s"][tenant][begin:]) for tenant in tenants)

    windows = [
        mine / max(usual, 1e-9)
        for mine, usual in zip(tried["done_per_s"][CHEAT], honest["done_per_s"][CHEAT], strict=True)
    ]
    late = len(windows) * 3 // 4
    gaining = [number for number, gain in enumerate(windows) if gain > _GAIN]
    return {
        "gain": work(tried, (CHEAT,)) / work(honest, (CHEAT,)),
        "others": work(tried, TENANTS[1:]) / work(honest, TENANTS[1:]),
        "late": work(tried, (CHEAT,), late) / work(honest, (CHEAT,), late),
        "slices": fmean(tried["slices"][tenant] for tenant in TENANTS[1:])
        / fmean(tried["slices"].values()),
        "until": float(tried["ended_runs"][gaining[-1]]) if gaining else 0.0,
    }
