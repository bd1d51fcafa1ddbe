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
from fairserve.benchmarks.reproduce.profiles.service import LEARNING_INTERVAL_S
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, ReportRow, measure
from fairserve.benchmarks.reproduce.setting import Setting
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
GAINFUL = (MERGES, NEW_APPS_TRUSTED)
"""Attempts that learned profiles do not stop."""

COLUMNS = (
    ReportColumn("gain, declared only", lambda seen: seen["declared"]["gain"], 2),
    ReportColumn("others", lambda seen: seen["declared"]["others"], 2),
    ReportColumn("gain, learned", lambda seen: seen["learned"]["gain"], 2),
    ReportColumn("others, learned", lambda seen: seen["learned"]["others"], 2),
    ReportColumn("last quarter, learned", lambda seen: seen["learned"]["late"], 2),
    ReportColumn("gains until run", lambda seen: seen["learned"]["until"], 0),
    ReportColumn("others' slices", lambda seen: seen["declared"]["slices"], 2),
    ReportColumn("others' slices, learned", lambda seen: seen["learned"]["slices"], 2),
)
_GAINS, _OTHERS, _LEARNED, _OTHERS_LEARNED, _LATE, _, _SLICES, _SLICES_LEARNED = COLUMNS
Summary = Mapping[str, Any]


def gains(setting: Setting, levers: Mapping[str, Lever] = LEVERS) -> Report:
    """Compare each lever with honesty, with declared and with learned profiles."""
    rows = _rows(setting, levers)
    text = (
        f"Cost model {COSTS.name}, one worker, batches of {COSTS.max_running}, KV cache of "
        f"{COSTS.kv_capacity_tokens:,} tokens. Three tenants, each requests the capacity of the worker "
        "and has the same work: runs of 4 calls, 400 to 1,000 tokens in, 100 out on average; "
        f"{DURATION_S * setting.scale:g} s. One tries the lever. Gain: tokens a second of honest work "
        "it gets done, over those where it is honest; the whole worker would be 3. Others: the same "
        "of the honest tenants. Until run: the cheat's runs ended by the last window with a gain over "
        f"{_GAIN}; 0 is never. Slices: what the honest tenants got, in true typical calls, over "
        f"their two thirds of all. Under limits: {LIMITS.user_rpm} calls a minute of a user. Learned: "
        f"every {LEARNING_INTERVAL_S:g} s. Medians of {setting.seeds} seeds with least and greatest."
    )
    title = "what a tenant gains by manipulating its profile"
    return Report("profiles", title, text, COLUMNS, list(rows.values()), claims(rows))


def cap(setting: Setting, levers: Mapping[str, Lever] = CAPPED) -> Report:
    """Compare ``weight_cap`` of the feeder for apps of one tenant, of which one pads its calls."""
    rows = _rows(setting, levers)
    text = (
        "The same contest between three apps of one tenant, two users each, levels tenant > user. One "
        "app begins each call with tokens that are not cached, and declares them. Others: work of its "
        "siblings over what they get done beside an honest app. "
        f"{DURATION_S * setting.scale:g} s. Medians of {setting.seeds} seeds with least and greatest."
    )
    columns = (_GAINS, _OTHERS, _LEARNED, _OTHERS_LEARNED)
    capped = [row for name, row in rows.items() if levers[name].weight_cap == 1]
    claim = "{word}, under a cap of 1 the siblings keep {{bound:g}} of their work at least"
    checks = [
        _all(claim.format(word=word), capped, column, WORK_UNDER_CAP, least=True)
        for word, column in (("declared", _OTHERS), ("learned", _OTHERS_LEARNED))
    ]
    title = "what a cap on an app's weight leaves to its siblings"
    return Report("profiles", title, text, columns, list(rows.values()), checks)


def _rows(setting: Setting, levers: Mapping[str, Lever]) -> dict[str, ReportRow]:
    """Return the figures of each lever by its name."""
    jobs: dict[str, list[SimulationJob]] = {}
    for name, lever in levers.items():
        for learned in (False, True):
            for each in (lever, _honest(lever)):
                jobs.setdefault(_key(each, name, learned), _jobs(setting, each, learned))
    runs = setting.summaries(jobs)
    rows: dict[str, ReportRow] = {}
    for name, lever in levers.items():
        seeds: list[dict[str, dict[str, float]]] = [{} for _ in range(setting.seeds)]
        for learned in (False, True):
            tried = runs[_key(lever, name, learned)]
            honest = runs[_key(_honest(lever), name, learned)]
            for number, pair in enumerate(zip(tried, honest, strict=True)):
                seeds[number]["learned" if learned else "declared"] = compared(*pair)
        rows[name] = ReportRow(name, measure(COLUMNS, seeds))
    return rows


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


BOUND = 1.2
"""Maximum gain that learned profiles leave over all attempts except :data:`GAINFUL`."""
LATE = 1.15
OTHERS = 0.85
GAIN_OF_PADDING = 1.1
SLICES_BESIDE_PADDING = 0.95
WORK_UNDER_CAP = 1.0


def claims(rows: Mapping[str, ReportRow]) -> list[Check]:
    """Check that attempts gain with declared profiles but, except the named ones, not with learned."""
    stopped = [row for name, row in rows.items() if name not in GAINFUL]
    lasting = [row for row in stopped if row.name != FIRST]
    padding = [row for name, row in rows.items() if name in CONSTANT_PROMPTS]
    kind = [row for row in lasting if "pads" not in row.name and row not in padding]
    checks = [
        _all("learned, a lever gains at most {bound:g} times over all", stopped, _LEARNED, BOUND),
        _all("learned, at most {bound:g} times in the last quarter", lasting, _LATE, LATE),
    ]
    if kind:
        claim = "learned, the honest keep {bound:g} of their work at least"
        checks.append(_all(claim, kind, _OTHERS_LEARNED, OTHERS, least=True))
    if padding:
        for word, gain, slices in (
            ("declared", _GAINS, _SLICES),
            ("learned", _LEARNED, _SLICES_LEARNED),
        ):
            checks += [
                _all(f"{word}, a constant prompt gains at most {{bound:g}} times",
                     padding, gain, GAIN_OF_PADDING),
                _all(f"{word}, beside it the honest keep {{bound:g}} of their slices at least",
                     padding, slices, SLICES_BESIDE_PADDING, least=True),
            ]  # fmt: skip
    for name in (DECLARES, NEW_APPS):
        if name in rows:
            seen = rows[name].measured[_GAINS.name].least
            claim = f"declared only, a tenant that {name} gains at least twice"
            checks.append(Check(claim, seen >= 2, f"{seen:.2f}"))
    for name in GAINFUL:
        if name in rows:
            seen = rows[name].measured[_LEARNED.name].greatest
            claim = f"learned, no gain over {BOUND:g} times: {name}"
            checks.append(Check(claim, seen <= BOUND, f"{seen:.2f}"))
    return checks


def _all(
    claim: str,
    rows: Sequence[ReportRow],
    column: ReportColumn,
    bound: float,
    *,
    least: bool = False,
) -> Check:
    """Check a bound on the row that is furthest from it, under its worst seed."""
    sign = -1 if least else 1
    worst, name = max(
        ((sign * (row.measured[column.name][1 if least else 2]), row.name) for row in rows),
        default=(math.nan, "none"),
    )
    return Check(claim.format(bound=bound), worst <= sign * bound, f"{sign * worst:.2f}: {name}")
