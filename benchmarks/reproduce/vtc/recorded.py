"""Figures 12 to 14 and 18 of the VTC paper, on its recorded trace of 27 clients.

The trace is replayed to its end. A client is *over its share* if over the ten minutes it requests
more than the max-min fair share of the service while the server is busy; the others are under
theirs, though each may exceed it for a minute. A response time is the mean over a window of 60 s;
"greatest" is that of the worst window. Where the paper uses words such as "drastic" or "low", the
limit is ours, and the claim names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from fairserve.benchmarks.reproduce.claims import at_least, at_most, less
from fairserve.benchmarks.reproduce.figure import Histories, Panel, PaperFigure, Rows
from fairserve.benchmarks.reproduce.report import Check, Report, ReportColumn, within
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting, delayed
from fairserve.benchmarks.reproduce.vtc.requests import (
    DURATION_S,
    RANKS,
    by_requests,
    over_share,
    request_figure,
)
from fairserve.benchmarks.reproduce.vtc.tables import OURS, configured
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.metrics import VTC_TABLES

_COSTS = COST_MODELS["a10g-llama2-7b"]
_FAIR = ("vtc", OURS)
_LIMITS = ("rpm-5", "rpm-15", "rpm-20", "rpm-30")
_BY_PROFILE = ("vtc", "vtc-predict", "vtc-oracle")
_PUBLISHED = {"rpm-5": 340.0, "rpm-20": 694.0, "rpm-30": 747.0, "fcfs": 777.0, "vtc": 779.0}
"""Throughput, from the paper's Table 2."""

_SHOWN = tuple(f"{rank}th: greatest s" for rank in RANKS)
_UNDER = "under share: greatest s"
_UNDER_MEAN = "under share: mean s"
_OVER_MEAN = "over share: mean s"
_ALL = "all: greatest s"
_THROUGHPUT = ReportColumn("tok/s", lambda h: h.tokens_per_s)
_REFUSED = ReportColumn("refused %", lambda h: 100.0 * h.refused_share, 1)


def _profiled(system: str) -> str:
    """Return the row name of a system that charges the profiled cost."""
    return f"{system}, profiled"


def recorded_figures(setting: Setting) -> list[Report]:
    """Return Figures 11 to 14 and 18; a system is replayed once for all of them."""
    trace = setting.recorded("vtc_real_trace.csv.gz")
    histories = replayed(setting, trace)
    return [request_figure(setting, trace), *response_figures(setting, trace, histories)]


def replayed(setting: Setting, trace: Trace) -> Histories:
    """Replay all systems of these figures."""
    systems = {name: configured(name) for name in ("fcfs", "lcf", *_FAIR, *_LIMITS)}
    for name in _BY_PROFILE:
        systems[_profiled(name)] = configured(name, {"local.cost": "profiled"})
    jobs = {
        name: [
            SimulationJob(
                f"recorded trace: {name} ({seed + 1} of {setting.seeds})",
                trace,
                system,
                delayed(_COSTS, seed),
                ReplayOptions(seed=seed),
                windows=VTC_TABLES,
                curves=True,
            )
            for seed in range(setting.seeds)
        ]
        for name, system in systems.items()
    }
    return {
        name: [ServiceHistory.of(outcome, DURATION_S) for outcome in outcomes]
        for name, outcomes in setting.simulate(jobs).items()
    }


def response_figures(setting: Setting, trace: Trace, histories: Histories) -> list[Report]:
    """Return Figures 12, 13, 14 and 18 of these runs."""
    order = by_requests(trace)
    over = over_share(trace, histories["fcfs"][0].total_per_s(60.0, 540.0))
    under = [user for user in order if user not in over]
    chosen = tuple(order[rank - 1] for rank in RANKS)
    shown = tuple(
        ReportColumn(name, _greatest([user]), 1) for name, user in zip(_SHOWN, chosen, strict=True)
    )
    low = ReportColumn(_UNDER, _greatest(under), 1)
    low_mean, high_mean = (
        ReportColumn(_UNDER_MEAN, _mean(under), 1),
        ReportColumn(_OVER_MEAN, _mean(over), 1),
    )
    everyone = ReportColumn(_ALL, _greatest(order), 1)

    by_profile = [_profiled(name) for name in _BY_PROFILE]
    figures = (
        (
            PaperFigure(
                12,
                "response time of four clients, recorded trace",
                (*shown, low),
                _figure_12,
                tuple(Panel("response", (name,), clients=chosen) for name in ("fcfs", *_FAIR)),
            ),
            ["fcfs", *_FAIR],
        ),
        (
            PaperFigure(
                13,
                "response time under RPM, recorded trace",
                (*shown[:2], everyone, _REFUSED),
                _figure_13,
                (
                    Panel("response", (_LIMITS[0],), named=chosen),
                    *(Panel("response", (name,), clients=chosen) for name in _LIMITS[1:]),
                ),
            ),
            [*_LIMITS, "fcfs", *_FAIR],
        ),
        (
            PaperFigure(
                14,
                "throughput of RPM, recorded trace",
                (_THROUGHPUT, _REFUSED),
                _figure_14,
                (Panel("throughput", (*_LIMITS, "fcfs", *_FAIR)),),
                published={name: {_THROUGHPUT.name: value} for name, value in _PUBLISHED.items()},
            ),
            [*_LIMITS, "fcfs", *_FAIR],
        ),
        (
            PaperFigure(
                18,
                "response time of all clients by the profiled cost, recorded trace",
                (low_mean, low, high_mean, _REFUSED),
                _figure_18,
                tuple(
                    Panel("response", (name,), named=tuple(over))
                    for name in ("fcfs", "lcf", *by_profile, OURS)
                ),
            ),
            ["fcfs", "lcf", "rpm-30", *by_profile, OURS],
        ),
    )
    text = (
        f"Cost model {_COSTS.name} ({_COSTS.origin}), the loop of the paper's code, a pool of "
        f"{_COSTS.kv_capacity_tokens:,} tokens; {setting.seeds} seeds: medians, and a claim holds if "
        f"it does for each. Over their share are the clients {', '.join(over)}; {len(under)} are "
        "under it."
    )
    return [
        figure.report(setting, text, {name: histories[name] for name in names})
        for figure, names in figures
    ]


def _greatest(users: Sequence[str]) -> Callable[[ServiceHistory], float]:
    return lambda history: history.greatest_response_s(*users)


def _mean(users: Sequence[str]) -> Callable[[ServiceHistory], float]:
    """Return a function for the mean response time, in which each client counts once."""
    return lambda history: sum(history.mean_response_s(user) for user in users) / len(users)


def _figure_12(rows: Rows) -> list[Check]:
    thirteenth, fourteenth, *busiest = _SHOWN
    fcfs = rows["fcfs"]
    claim = "the {} client's response time rises past 60 s, as all four do"
    checks = [at_least(claim.format(name[:4]), fcfs, name, 60.0, 1) for name in _SHOWN]
    for name in _FAIR:
        row = rows[name]
        for column in (thirteenth, fourteenth):
            claim = f"the {column[:4]} client's stays under a quarter of that under FCFS"
            checks.append(less(claim, row, fcfs, column, 0.25, 1))
        claim = "so does that of every client under its share"
        checks.append(less(claim, row, fcfs, _UNDER, 0.25, 1))
        for column in busiest:
            claim = f"the {column[:4]} client, over its share, waits 60 s and more"
            checks.append(at_least(claim, row, column, 60.0, 1))
    return checks


def _figure_13(rows: Rows) -> list[Check]:
    few, most = rows[_LIMITS[0]], rows[_LIMITS[-1]]
    checks = [at_most("all clients are served within 2 s", few, _ALL, 2.0, 1)]
    steps = [*_LIMITS, "fcfs"]
    for low, high in pairwise(steps):
        claim = "the response time grows with the limit, towards FCFS"
        checks.append(less(claim, rows[low], rows[high], _ALL, digits=1))
    for column in _SHOWN[:2]:
        for name in _FAIR:
            claim = f"the {column[:4]} client waits less than half as long as under a high limit"
            checks.append(less(claim, rows[name], most, column, 0.5, 1))
    return checks


def _figure_14(rows: Rows) -> list[Check]:
    column = _THROUGHPUT.name
    checks = [
        less("lower throughput", rows[limit], rows[name], column)
        for limit in _LIMITS
        for name in _FAIR
    ]
    for low, high in pairwise(_LIMITS):
        checks.append(less("throughput grows with the limit", rows[low], rows[high], column))
    checks += [
        within(f"{name}: throughput as published, within 3 %", rows[name], column, 0.03)
        for name in _PUBLISHED
    ]
    return checks


def _figure_18(rows: Rows) -> list[Check]:
    fcfs, lcf = rows["fcfs"], rows["lcf"]
    fair = [rows[_profiled(name)] for name in _BY_PROFILE] + [rows[OURS]]
    claim = "clients under their share wait less than a quarter as long as under FCFS"
    checks = [less(claim, row, fcfs, _UNDER_MEAN, 0.25, 1) for row in [*fair, lcf]]
    claim = "they wait over four times as long as under VTC, although calls are refused"
    vtc = rows[_profiled("vtc")].measured[_UNDER_MEAN].greatest
    checks.append(at_least(claim, rows["rpm-30"], _UNDER_MEAN, 4 * vtc, 1))
    checks += [
        less("clients over their share wait less than under LCF", row, lcf, _OVER_MEAN, digits=1)
        for row in fair
    ]
    return checks
