"""``sensitivity``: the effect of each parameter of the default composition, one at a time.

Quanta, feed window, slacks and balance are varied over the workloads of ``composition`` on two
workers; the watermarks of overload on the application mix of the FairServe reproductions, where
limits are set and some users abuse. The shipped default is recommended if no other value is better;
each report states that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from fairserve.benchmarks.reproduce.composition.plots import draw_sweeps
from fairserve.benchmarks.reproduce.composition.workloads import (
    OURS,
    SATISFIED,
    TAIL,
    THROUGHPUT,
    WORKLOADS,
    setting_text,
    simulate_cell,
)
from fairserve.benchmarks.reproduce.fairserve import mix
from fairserve.benchmarks.reproduce.fairserve.checks import measured
from fairserve.benchmarks.reproduce.fairserve.figure8 import ABORTED, DELAYED, PRECISION, RECALL
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, measure, ratio
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.platform.tenancy.system.parameters import parameters_of
from fairserve.scheduling.registry import SYSTEMS

Value = float | int | None

SWEEPS: Mapping[str, Sequence[Value]] = {
    "local.quantum": (60, 250, 1000, 4000, 16_000, 64_000),
    "router.quantum_prompts": (20, 100, 400, 1600, 6400),
    "router.balance_abs": (4, 16, 64, None),
    "feed_window": (0.01, 0.03, 0.1, 0.3, 1.0),
    "resident_share": (None, 0.5, 0.75, 0.9, 1.0),
    "feeder.interaction_slack": (0, 1, 4, 16, 1e9),
    "feeder.locality_slack": (0, 2, 8, 32),
}
"""Values of Q^u, Q^w and the other parameters; 1e9 means no bound."""
WATERMARKS = {"high_watermark": (1.2, 1.5, 2.0, 3.0, 4.0)}
_OFF = 0.6
"""Low watermark relative to the high one, as in the default."""
WORKERS = 2

COLUMNS = (
    Column("tok/s", lambda figures: figures[THROUGHPUT.name], 3),
    Column("p99 TTFT", lambda figures: figures[TAIL.name], 3),
    Column("satisfied", lambda figures: figures[SATISFIED.name], 3),
)
"""Columns relative to the default: geometric means over the workloads; worst least satisfied client."""

Summaries = Mapping[str, Sequence[Mapping[str, Any]]]
"""Summaries by workload, one per seed."""


def sensitivity(setting: Setting, sweeps: Mapping[str, Sequence[Value]] = SWEEPS) -> list[Report]:
    """Return a report of the composition's workloads, and one of the watermarks."""
    return [_composition(setting, sweeps), _watermarks(setting)]


def default_of(parameter: str) -> Value:
    """Return the shipped value of a parameter."""
    value: Value = parameters_of(SYSTEMS[OURS])[parameter][0]
    return value


def _label(parameter: str, value: Value) -> str:
    return f"{parameter}={_text(value)}"


def _text(value: Value) -> str:
    return "none" if value is None else f"{value:g}"


def _composition(setting: Setting, sweeps: Mapping[str, Sequence[Value]]) -> Report:
    ours = SYSTEMS[OURS]
    systems = {"default": ours}
    for parameter, values in sweeps.items():
        default = default_of(parameter)
        for value in values:
            if value != default:
                systems[_label(parameter, value)] = ours.with_options({parameter: value})
    by_workload = {
        workload: simulate_cell(setting, workload, WORKERS, systems) for workload in WORKLOADS
    }
    rows = {name: Row(name, measure(COLUMNS, _relative(by_workload, name))) for name in systems}
    shown = {
        parameter: [
            (
                _text(value),
                rows["default" if value == default_of(parameter) else _label(parameter, value)],
            )
            for value in values
        ]
        for parameter, values in sweeps.items()
    }
    plots: list[str] = []
    if setting.plots is not None:
        path = draw_sweeps(
            setting.plots / "sensitivity.png",
            shown,
            {
                "tok/s": "tokens/s, of the default",
                "p99 TTFT": "p99 TTFT of the well-behaved, times the default",
                "satisfied": "least satisfied client, of the default, worst workload",
            },
            {parameter: _text(default_of(parameter)) for parameter in sweeps},
            log=True,
        )
        plots = [path.name]
    return Report(
        "sensitivity",
        "what each parameter of the composition does",
        f"{setting_text(setting)} Here on {WORKERS} workers, one parameter changed at a time. "
        "Relative to the default under the same seed, geometric mean over the workloads; of what the "
        "least satisfied client has, the worst of any workload.",
        COLUMNS,
        list(rows.values()),
        [
            recommended(parameter, dict(values), rows["default"])
            for parameter, values in shown.items()
        ],
        plots,
    )


def _relative(by_workload: Mapping[str, Summaries], name: str) -> list[dict[str, float]]:
    """Return one entry per seed."""
    seeds = len(next(iter(by_workload.values()))["default"])

    def ratios(column: Column, seed: int) -> list[float]:
        return [
            ratio(column.of(of[name][seed]), column.of(of["default"][seed]))
            for of in by_workload.values()
        ]

    return [
        {
            THROUGHPUT.name: geometric_mean(ratios(THROUGHPUT, seed)),
            TAIL.name: geometric_mean(ratios(TAIL, seed)),
            SATISFIED.name: min(ratios(SATISFIED, seed)),
        }
        for seed in range(seeds)
    ]


def recommended(parameter: str, rows: Mapping[str, Row], default: Row) -> Check:
    """Check that no other value is better than the default.

    Better means 2 % more throughput or a tenth less tail, without losing as much of the other, and
    no client less satisfied by a hundredth.
    """
    better = []
    for label, row in rows.items():
        throughput, tail = row.measured["tok/s"].value, row.measured["p99 TTFT"].value
        fair = row.measured["satisfied"].value >= 0.99
        gains = (throughput > 1.02 and tail < 1.1) or (tail < 0.9 and throughput > 0.98)
        if fair and gains:
            better.append(f"{label} ({throughput:.2f} of the tokens/s, {tail:.2f} times the tail)")
    claim = f"{parameter}: no other value is better than the default"
    return Check(claim, not better, "; ".join(better) or "none")


def _watermarks(setting: Setting) -> Report:
    ours = SYSTEMS[OURS]
    values = WATERMARKS["high_watermark"]
    systems = {
        _label("high_watermark", high): ours.with_options(
            {"high_watermark": high, "low_watermark": _OFF * high}
        )
        for high in values
    }
    summaries = mix.simulate_mix(setting, systems)
    columns = (RECALL, PRECISION, DELAYED, ABORTED, _TOKENS)
    rows = [Row(name, measured(columns, of_seeds)) for name, of_seeds in summaries.items()]
    by_value = dict(zip(map(_text, values), rows, strict=True))
    plots: list[str] = []
    if setting.plots is not None:
        path = draw_sweeps(
            setting.plots / "sensitivity-watermarks.png",
            {"high_watermark": list(by_value.items())},
            {column.name: column.name for column in (RECALL, PRECISION, DELAYED)},
            {"high_watermark": _text(default_of("high_watermark"))},
            log=False,
        )
        plots = [path.name]
    return Report(
        "sensitivity-watermarks",
        "when an overload begins",
        f"{mix.setting_text(setting)} The low watermark is {_OFF:g} times the high one.",
        columns,
        rows,
        [late_enough(by_value)],
        plots,
    )


_TOKENS = Column("tok/s", lambda s: float(s["throughput_tokens_per_s"]["total"]))


def late_enough(rows: Mapping[str, Row]) -> Check:
    """Check that no watermark throttles only abusers, like the default, and delays a tenth fewer."""
    default = rows[_text(default_of("high_watermark"))]

    def precise(row: Row) -> bool:
        precision = row.measured.get(PRECISION.name)
        return precision is None or precision.least == 100.0

    delayed = default.measured[DELAYED.name].value
    better = [
        f"{label} ({row.measured[DELAYED.name].value:.1f} % of the users delayed, not {delayed:.1f} %)"
        for label, row in rows.items()
        if precise(row) and row.measured[DELAYED.name].value < 0.9 * delayed
    ]
    claim = (
        "high_watermark: the default throttles abusers only, and no other that does delays fewer"
    )
    return Check(claim, precise(default) and not better, "; ".join(better) or "none")
