"""Figures 12 to 14 and 18 of the VTC paper, on its recorded trace of 27 clients.

The trace is replayed to its end. A client is *over its share* if over the ten minutes it requests
more than the max-min fair share of the service while the server is busy; the others are under
theirs, though each may exceed it for a minute. A response time is the mean over a window of 60 s;
"greatest" is that of the worst window. Statements and published values are in ``paper.toml``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairserve.benchmarks.reproduce.figure import Histories, Panel
from fairserve.benchmarks.reproduce.report import Report, ReportColumn
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting, delayed
from fairserve.benchmarks.reproduce.vtc.paper import OURS, paper_figure, recorded_entries
from fairserve.benchmarks.reproduce.vtc.requests import (
    DURATION_S,
    RANKS,
    by_requests,
    over_share,
    request_figure,
)
from fairserve.benchmarks.reproduce.vtc.tables import configured
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.metrics import VTC_TABLES

_COSTS = COST_MODELS["a10g-llama2-7b"]
_FAIR = ("vtc", OURS)
_LIMITS = ("rpm-5", "rpm-15", "rpm-20", "rpm-30")
_BY_PROFILE = ("vtc", "vtc-predict", "vtc-oracle")


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
    columns = {
        column.name: column
        for column in (
            *(
                ReportColumn(f"{rank}th: greatest s", _greatest([user]), 1)
                for rank, user in zip(RANKS, chosen, strict=True)
            ),
            ReportColumn("under share: greatest s", _greatest(under), 1),
            ReportColumn("under share: mean s", _mean(under), 1),
            ReportColumn("over share: mean s", _mean(over), 1),
            ReportColumn("all: greatest s", _greatest(order), 1),
            ReportColumn("tok/s", lambda h: h.tokens_per_s),
            ReportColumn("refused %", lambda h: 100.0 * h.refused_share, 1),
        )
    }
    by_profile = [_profiled(name) for name in _BY_PROFILE]
    panels = {
        12: tuple(Panel("response", (name,), clients=chosen) for name in ("fcfs", *_FAIR)),
        13: (
            Panel("response", (_LIMITS[0],), named=chosen),
            *(Panel("response", (name,), clients=chosen) for name in _LIMITS[1:]),
        ),
        14: (Panel("throughput", (*_LIMITS, "fcfs", *_FAIR)),),
        18: tuple(
            Panel("response", (name,), named=tuple(over))
            for name in ("fcfs", "lcf", *by_profile, OURS)
        ),
    }
    text = (
        f"Cost model {_COSTS.name} ({_COSTS.origin}), the loop of the paper's code, a pool of "
        f"{_COSTS.kv_capacity_tokens:,} tokens; {setting.seeds} seeds: medians, and a claim holds if "
        f"it does for each. Over their share are the clients {', '.join(over)}; {len(under)} are "
        "under it."
    )
    return [
        paper_figure(entry, columns, panels[entry["number"]]).report(
            setting, text, {name: histories[name] for name in entry["systems"]}
        )
        for entry in recorded_entries()
    ]


def _greatest(users: Sequence[str]) -> Callable[[ServiceHistory], float]:
    return lambda history: history.greatest_response_s(*users)


def _mean(users: Sequence[str]) -> Callable[[ServiceHistory], float]:
    """Return a function for the mean response time, in which each client counts once."""
    return lambda history: sum(history.mean_response_s(user) for user in users) / len(users)
