"""Tables of the VTC paper: the service difference of each system.

Tables 2 and 3 replay the paper's recorded trace (the latter by the profiled cost), Table 4 is two
overloaded clients by the profiled cost, Tables 5 and 6 are two and eight backlogged clients under
length prediction. The windows are those of its tables (ALGORITHMS section 9). Every trace is
replayed to its end, since the demand of calls that wait long is part of the figures.

The published figures were produced by the paper's code, which differs from its text, so VTC runs
here as in the code: a client that finds nobody queued keeps its counter, the profiled cost is a
tenth of the printed one, and where it measures service, demand is still measured by the linear
cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairserve.benchmarks.reproduce.report import (
    Check,
    Report,
    ReportColumn,
    ReportRow,
    rows_of,
    same_order,
    within,
)
from fairserve.benchmarks.reproduce.setting import Setting, delayed
from fairserve.benchmarks.reproduce.vtc.paper import OURS, Table, tables
from fairserve.benchmarks.simulate.job import SimulationJob
from fairserve.benchmarks.traces.generate.vtc_suites import VTC_SUITES, generate_vtc_suite
from fairserve.engine.simulated.cost_model import COST_MODELS
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import TokenUsage
from fairserve.scheduling.fairness.cost import Linear, Profiled
from fairserve.scheduling.metrics import VTC_TABLES
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

_COSTS = COST_MODELS["a10g-llama2-7b"]
MAX = ReportColumn("max", lambda s: s["service_difference"]["max"], 1)
AVG = ReportColumn("avg", lambda s: s["service_difference"]["avg"], 1)
VAR = ReportColumn("var", lambda s: s["service_difference"]["var"])
THROUGHPUT = ReportColumn("tok/s", lambda s: s["throughput_tokens_per_s"]["total"])
_COLUMNS = (MAX, AVG, VAR, THROUGHPUT)
NO_OPTIONS: Mapping[str, Any] = {}
_OURS_OPTIONS = {"feeder.gamma": 2.0}
"""An output token weighs twice an input token, as in the paper's service."""

LENGTH_S = 600.0
"""Seconds covered by tables and figures; the tables' last window is centred a step before the end."""
_AS_CODED = {"local.lift_when_idle": False}
_BY_PROFILE = {**_AS_CODED, "local.cost": "profiled"}


class ProfiledTenths(Profiled):
    """The profiled cost in the unit of the paper's code and tables: a tenth of the printed one."""

    def __call__(self, usage: TokenUsage) -> float:
        """Return the cost of a usage."""
        return super().__call__(usage) / 10.0


TABLES: Mapping[int, Table] = tables()
"""Tables of the paper by number."""


def vtc_table2(setting: Setting) -> Report:
    """Reproduce Table 2: the recorded trace, linear cost."""
    rows = _rows(setting, TABLES[2])
    checks = []
    for row in rows:
        if not row.published:
            continue
        percent = 25 if row.name == "rpm-5" else 15
        checks += [
            within(f"{row.name}: throughput within 3 %", row, "tok/s", 0.03),
            within(f"{row.name}: average within {percent} %", row, "avg", percent / 100),
            within(f"{row.name}: maximum within 25 %", row, "max", 0.25),
        ]
    return _report("vtc-table2", TABLES[2].title, setting, rows, checks + _ordered(rows))


def vtc_tables(setting: Setting, numbers: Sequence[int] = (3, 4, 5, 6)) -> list[Report]:
    """Reproduce Tables 3 to 6: profiled cost, and length prediction."""
    reports = []
    for number in numbers:
        rows = _rows(setting, TABLES[number])
        [vtc] = [row for row in rows if row.name == "vtc"]
        checks = [*_ordered(rows), within("vtc: maximum within 30 %", vtc, "max", 0.30)]
        title = f"Table {number}, {TABLES[number].title}"
        reports.append(_report("vtc-tables", title, setting, rows, checks))
    return reports


def _rows(setting: Setting, table: Table) -> list[ReportRow]:
    """Return the systems of a table, and ours. A seed of the recorded trace is a decode delay."""
    options = _BY_PROFILE if table.profiled else _AS_CODED
    cost = ProfiledTenths() if table.profiled else Linear()
    windows = replace(VTC_TABLES, last_s=LENGTH_S * setting.scale - VTC_TABLES.step_s)
    traces = _traces(setting, table.suite)
    jobs = {
        name: [
            SimulationJob(
                f"{name} ({seed + 1} of {setting.seeds})",
                trace,
                configured(name, options),
                _COSTS if table.suite else delayed(_COSTS, seed),
                ReplayOptions(seed=seed),
                cost=cost,
                demand_cost=Linear(),
                windows=windows,
            )
            for seed, trace in enumerate(traces)
        ]
        for name in [*table.published, OURS]
    }
    names = [column.name for column in _COLUMNS]
    known = {name: dict(zip(names, row, strict=True)) for name, row in table.published.items()}
    return list(rows_of(_COLUMNS, setting.summaries(jobs), known).values())


def _traces(setting: Setting, suite: str) -> list[Trace]:
    """Return the trace of each seed."""
    if not suite:
        return [setting.recorded("vtc_real_trace.csv.gz")] * setting.seeds
    until_s = VTC_SUITES[suite].duration_s * setting.scale
    return [generate_vtc_suite(suite, seed, until_s=until_s) for seed in range(setting.seeds)]


def configured(name: str, options: Mapping[str, Any] = NO_OPTIONS) -> SystemConfig:
    """Return a system by name, ours with this paper's service; ``options`` apply to those with VTC."""
    system = SYSTEMS[name]
    if name == OURS:
        return system.with_options(_OURS_OPTIONS)
    return system.with_options(options) if system.local == "vtc" else system


def _ordered(rows: list[ReportRow]) -> list[Check]:
    """Check the published order, and that ours is not beaten."""
    published = [row for row in rows if row.published]
    return [
        same_order("order by average", published, "avg"),
        same_order("order by maximum", published, "max"),
        _not_beaten(rows),
    ]


def _not_beaten(rows: list[ReportRow]) -> Check:
    """Check that no system but an oracle is fairer and faster than ours, by more than the spread."""
    [ours] = [row for row in rows if row.name == OURS]
    better = [
        row.name
        for row in rows
        if row is not ours
        and row.name not in ("vtc-oracle", "vtc-noisy")
        and row.measured["avg"].greatest < ours.measured["avg"].least
        and row.measured["tok/s"].least > ours.measured["tok/s"].greatest
    ]
    seen = f"avg {ours.measured['avg'].value:,.1f}, {ours.measured['tok/s'].value:,.0f} tok/s"
    claim = f"no system without an oracle beats {OURS} on average difference and throughput at once"
    return Check(claim, not better, f"{seen}{'; beaten by ' if better else ''}{', '.join(better)}")


def _report(
    name: str, title: str, setting: Setting, rows: list[ReportRow], checks: list[Check]
) -> Report:
    text = (
        f"Cost model {_COSTS.name} ({_COSTS.origin}), the loop and the lift of the paper's code, a pool "
        f"of {_COSTS.kv_capacity_tokens:,} tokens; windows of 60 s at the centres of the paper's "
        f"tables; medians of {setting.seeds} seeds with least and greatest."
    )
    return Report(name, f"VTC, {title}", text, _COLUMNS, rows, checks)
