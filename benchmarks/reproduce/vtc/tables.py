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

from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Case, Setting, delayed, under
from fairserve.benchmarks.reproduce.study import Entry, columns_of, read_study, report_of
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

OURS = "fairserve"
STUDY = read_study(__file__)
"""The paper's tables and figures."""
_COLUMNS = columns_of(STUDY["columns"])
_COSTS = COST_MODELS["a10g-llama2-7b"]
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


TABLES: Mapping[int, Entry] = {entry["number"]: entry for entry in STUDY["table"]}
"""Tables of the paper by number."""


def vtc_table2(setting: Setting) -> Report:
    """Reproduce Table 2: the recorded trace, linear cost."""
    return _table(setting, TABLES[2], "vtc-table2")


def vtc_tables(setting: Setting, numbers: Sequence[int] = (3, 4, 5, 6)) -> list[Report]:
    """Reproduce Tables 3 to 6: profiled cost, and length prediction."""
    return [_table(setting, TABLES[number], "vtc-tables") for number in numbers]


def _table(setting: Setting, entry: Entry, name: str) -> Report:
    """Return the systems of a table, and ours. A seed of the recorded trace is a decode delay."""
    profiled, suite = entry.get("profiled", False), entry.get("suite", "")
    cases = [
        Case(
            SimulationJob,
            trace=trace,
            costs=_COSTS if suite else delayed(_COSTS, seed),
            options=ReplayOptions(seed=seed),
            cost=ProfiledTenths() if profiled else Linear(),
            demand_cost=Linear(),
            windows=replace(VTC_TABLES, last_s=LENGTH_S * setting.scale - VTC_TABLES.step_s),
        )
        for seed, trace in enumerate(_traces(setting, suite))
    ]
    options = _BY_PROFILE if profiled else _AS_CODED
    systems = {each: configured(each, options) for each in [*entry["published"], OURS]}
    return report_of(
        {**STUDY["of_tables"], **entry, "name": name},
        _COLUMNS,
        setting,
        setting.summaries(under(systems, cases)),
        costs=f"{_COSTS.name} ({_COSTS.origin})",
        pool=f"{_COSTS.kv_capacity_tokens:,}",
    )


def figure_entry(entry: Entry, common: str) -> Entry:
    """Return the entry of a figure with what is common to those of its kind."""
    return {**STUDY[common], **entry, "name": f"vtc-figure{entry['number']}"}


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
