"""Figures 12, 13 and 18 of the VTC paper, on its recorded trace of 27 clients.

The trace is replayed to its end. A client is *over its share* if over the ten minutes it requests
more than the max-min fair share of the service while the server is busy; the others are under
theirs, though each may exceed it for a minute. A response time is the mean over a window of 60 s;
"greatest" is that of the worst window. Statements and published values are in ``paper.toml``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fairserve.benchmarks.reproduce.report import Report, ReportColumn
from fairserve.benchmarks.reproduce.setting import Case, Setting, delayed, under
from fairserve.benchmarks.reproduce.study import drawn, report_of
from fairserve.benchmarks.reproduce.vtc.panels import panels_of
from fairserve.benchmarks.reproduce.vtc.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.vtc.tables import STUDY, configured, figure_entry
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.metrics import VTC_TABLES

DURATION_S = 600.0
RANKS = (13, 14, 26, 27)
"""Clients shown in the paper, ranked by number of requests: two middle ones, the two busiest."""
_COSTS = COST_MODELS["a10g-llama2-7b"]
_BY_PROFILE = ", profiled"
"""End of the name of a row whose system charges the profiled cost."""

Histories = Mapping[str, Sequence[ServiceHistory]]
"""Histories by row, one per seed."""


def recorded_figures(setting: Setting) -> list[Report]:
    """Return the figures; a system is replayed once for all of them."""
    trace = setting.recorded("vtc_real_trace.csv.gz")
    return response_figures(setting, trace, replayed(setting, trace))


def replayed(setting: Setting, trace: Trace) -> Histories:
    """Replay all systems of these figures."""
    systems = {}
    for name in dict.fromkeys(each for entry in STUDY["recorded"] for each in entry["systems"]):
        options = {"local.cost": "profiled"} if name.endswith(_BY_PROFILE) else {}
        systems[name] = configured(name.removesuffix(_BY_PROFILE), options)
    cases = [
        Case(
            SimulationJob,
            trace=trace,
            costs=delayed(_COSTS, seed),
            options=ReplayOptions(seed=seed),
            windows=VTC_TABLES,
            curves=True,
        )
        for seed in setting.seed_numbers
    ]
    return {
        name: [ServiceHistory.of(outcome, DURATION_S) for outcome in outcomes]
        for name, outcomes in setting.simulate(under(systems, cases)).items()
    }


def by_requests(trace: Trace) -> list[str]:
    """Return the users, sorted by number of requests."""
    requests = Counter(each.user for each in trace.interactions)
    return sorted(requests, key=lambda user: (requests[user], user))


def over_share(trace: Trace, service_per_s: float) -> list[str]:
    """Return the users that request more than the max-min fair share of this service."""
    asked: dict[str, float] = {}
    for each in trace.interactions:
        service = sum(call.input_tokens + 2 * call.output_tokens for call in each.calls)
        asked[each.user] = asked.get(each.user, 0.0) + service / DURATION_S
    left = service_per_s
    ordered = sorted(asked, key=lambda user: (asked[user], user))
    for number, user in enumerate(ordered):
        if asked[user] > left / (len(ordered) - number):
            return ordered[number:]
        left -= asked[user]
    return []


def response_figures(setting: Setting, trace: Trace, histories: Histories) -> list[Report]:
    """Return the figures of these runs."""
    order = by_requests(trace)
    over = over_share(trace, histories["fcfs"][0].total_per_s(60.0, 540.0))
    others = [user for user in order if user not in over]
    chosen = [order[rank - 1] for rank in RANKS]
    columns = {
        column.name: column
        for column in (
            *(
                ReportColumn(f"{rank}th: greatest s", _greatest([user]), 1)
                for rank, user in zip(RANKS, chosen, strict=True)
            ),
            ReportColumn("under share: greatest s", _greatest(others), 1),
            ReportColumn("under share: mean s", _mean(others), 1),
            ReportColumn("over share: mean s", _mean(over), 1),
            ReportColumn("all: greatest s", _greatest(order), 1),
            ReportColumn("refused %", lambda h: 100.0 * h.refused_share, 1),
        )
    }
    groups = {"chosen": chosen, "over": over}
    reports = []
    for given in STUDY["recorded"]:
        entry = figure_entry(given, "of_recorded")
        runs = {name: histories[name] for name in entry["systems"]}
        report = report_of(
            entry,
            columns,
            setting,
            runs,
            costs=f"{_COSTS.name} ({_COSTS.origin})",
            pool=f"{_COSTS.kv_capacity_tokens:,}",
            over=", ".join(over),
            others=len(others),
        )
        panels = panels_of(entry, runs, groups)
        reports.append(drawn(setting, report, panels, across=3, legend=False))
    return reports


def _greatest(users: Sequence[str]) -> Callable[[ServiceHistory], float]:
    return lambda history: history.greatest_response_s(*users)


def _mean(users: Sequence[str]) -> Callable[[ServiceHistory], float]:
    """Return a function for the mean response time, in which each client counts once."""
    return lambda history: sum(history.mean_response_s(user) for user in users) / len(users)
