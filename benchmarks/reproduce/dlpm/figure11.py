"""Figure 11 of the DLPM paper: service rate against the number of clients, at one total rate.

The paper does not name the workload, the rate or Q^u. Here every client alternates between
questions on two documents: more clients mean more distinct prefixes for the same number of
requests. The total load slightly exceeds what the worker can do with hits, and the run stops with
the arrivals. Q^u is 100,000, about five uncached documents: with less than the cost of one call,
DLPM alternates between the clients call by call, like VTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairserve.benchmarks.reproduce.charts import Chart, draw_charts, line
from fairserve.benchmarks.reproduce.dlpm.stopped import HIT_RATE, JAIN, TOKENS_PER_S, stopped_jobs
from fairserve.benchmarks.reproduce.dlpm.systems import (
    COSTS,
    ONE_WORKER,
    OURS,
    OURS_TEXT,
    PUBLISHED,
    PUBLISHED_TEXT,
    server_text,
    system,
)
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, rows_of
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.steady import steady
from fairserve.engine.simulated.replay_result import ReplayResult
from fairserve.engine.simulated.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    DlpmLoad,
    Misbehaviour,
    generate_dlpm,
    with_clients,
)
from fairserve.engine.simulated.traces.generate.long_context_qa import LongContextQa
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.fairness.cost import Linear
from fairserve.scheduling.metrics import Service
from fairserve.scheduling.system import SystemConfig

CLIENTS = (5, 10, 20, 30, 40, 50)
QUESTIONS_PER_S = 1.2
"""Questions per second of all clients together."""
DURATION_S = 1800.0
COMPARABLE = 0.9
SLIGHT = 0.15
QUANTUM = 100_000
_DLPM = ("dlpm", PUBLISHED)
_WORKLOAD = replace(DLPM_WORKLOADS["long-context-qa"], well_behaved=LongContextQa(open_documents=2))

COLUMNS = (
    Column("service/s", lambda s: s["service_per_s"]),
    TOKENS_PER_S,
    HIT_RATE,
    JAIN,
)


def trace_of(clients: int, seed: int, scale: float) -> Trace:
    """Return the trace of this many clients at one total rate."""
    load = DlpmLoad(QUESTIONS_PER_S, clients=1, misbehaving=0, duration_s=DURATION_S * scale)
    return generate_dlpm(_WORKLOAD, Misbehaviour.NONE, seed, load=with_clients(load, clients))


def service_rate(
    trace: Trace, result: ReplayResult, *, begin_s: float, end_s: float
) -> dict[str, Any]:
    """Return input + 2 * output tokens of all clients per second, and :func:`steady`."""
    service = Service(result.calls, Linear()).between(begin_s, end_s)
    figures = steady(trace, result, begin_s=begin_s, end_s=end_s)
    return {**figures, "service_per_s": service / (end_s - begin_s)}


def row_name(system_name: str, clients: int) -> str:
    """Return the name of the row for a system and a number of clients."""
    return f"{system_name}, {clients} clients"


def _configured(name: str) -> SystemConfig:
    found = system(name)
    return found.with_options({"local.quantum": float(QUANTUM)}) if name in _DLPM else found


def dlpm_figure11(setting: Setting, clients: Sequence[int] = CLIENTS) -> Report:
    """Run all systems with all numbers of clients."""
    duration_s = DURATION_S * setting.scale
    traces = {
        number: [trace_of(number, seed, setting.scale) for seed in range(setting.seeds)]
        for number in clients
    }
    jobs = {
        row_name(name, number): stopped_jobs(
            f"Figure 11: {name}, {number} clients",
            traces[number],
            _configured(name),
            duration_s,
            figures=service_rate,
        )
        for name in ONE_WORKER
        for number in clients
    }
    rows = rows_of(COLUMNS, setting.summaries(jobs))
    plots = () if setting.plots is None else (_draw(setting.plots, rows, clients),)
    return Report(
        "dlpm-figure11",
        "DLPM, service rate with 5 to 50 clients",
        f"{server_text(COSTS)}. Questions on documents of 21,449 tokens, {QUESTIONS_PER_S:g}/s of all "
        "clients together, each on two documents in turns, 8 times each (chosen), Q^u of DLPM "
        f"{QUANTUM:,} (chosen); stopped after {duration_s:g} s of arrivals, figures of the last three "
        f"quarters. Service is input + 2 * output tokens. {PUBLISHED_TEXT} {OURS_TEXT} "
        f"Medians of {setting.seeds} seeds.",
        COLUMNS,
        list(rows.values()),
        claims(rows, clients),
        plots,
    )


def claims(rows: Mapping[str, Row], clients: Sequence[int]) -> list[Check]:
    """Check the paper's claims for both forms of DLPM and those for this project's default."""

    def rates(name: str) -> list[float]:
        return [rows[row_name(name, number)].measured["service/s"].value for number in clients]

    checks = []
    vtc, lpm = rates("vtc"), rates("lpm")
    for name in (*_DLPM, OURS):
        own = rates(name)
        ratios = [mine / other for mine, other in zip(own, lpm, strict=True)]
        claim = (
            f"{name}: service rate comparable to LPM's with any number, {COMPARABLE:.0%} or more"
        )
        checks.append(Check(claim, min(ratios) >= COMPARABLE, _percents(ratios)))
        ratios = [mine / other for mine, other in zip(own, vtc, strict=True)]
        claim = f"{name}: service rate above VTC's with any number"
        checks.append(Check(claim, min(ratios) > 1.0, _percents(ratios)))
    checks += [_declines(f"{name}: more clients", rates(name), clients) for name in ("lpm", *_DLPM)]
    change = vtc[-1] / vtc[0] - 1
    claim = "vtc: its service rate changes less with the clients than dlpm's"
    dlpm = rates(PUBLISHED)
    other = dlpm[-1] / dlpm[0] - 1
    checks.append(Check(claim, abs(change) < abs(other), f"{change:+.1%} against {other:+.1%}"))
    return checks


def _declines(claim: str, rates: Sequence[float], clients: Sequence[int]) -> Check:
    change = rates[-1] / rates[0] - 1
    claim = f"{claim} lower the service rate slightly, by no more than {SLIGHT:.0%}"
    seen = f"{change:+.1%} from {clients[0]} to {clients[-1]}"
    return Check(claim, -SLIGHT <= change < 0, seen)


def _percents(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.1%} to {max(ratios):.1%}"


def _draw(folder: Path, rows: Mapping[str, Row], clients: Sequence[int]) -> str:
    lines = [
        line(name, [(number, rows[row_name(name, number)]) for number in clients], "service/s", at)
        for at, name in enumerate(ONE_WORKER)
    ]
    chart = Chart("service rate", "clients", "weighted tokens per second", lines)
    return draw_charts(folder / "dlpm-figure11.png", [chart], width=6.4)
