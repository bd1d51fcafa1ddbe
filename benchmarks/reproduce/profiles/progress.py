"""``run-progress``: whether runs end sooner if those closest to their expected end go first.

``run_priority`` by progress is compared with the order of arrival (FairServe's), and with progress
by the true number of remaining calls, which nobody knows in practice: the limit of better
predictions. A last row has no priority of runs in progress at all; FairServe's gives them the
shorter mean run, at the cost of the first token of a new run. All figures are relative to those of
arrival on the same trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, measure
from fairserve.benchmarks.reproduce.setting import Setting, delayed
from fairserve.benchmarks.simulate.job import Job
from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.replay_options import ReplayOptions
from fairserve.engine.simulated.traces.assignment import arrive_poisson, assign_users, merge
from fairserve.engine.simulated.traces.model import Trace
from fairserve.interactions.call import Call
from fairserve.scheduling.registry import SYSTEMS

SMALL = replace(COST_MODELS["a100-llama3-8b"], max_running=16, kv_capacity_tokens=200_000)
"""Cost model with small batches, so that calls wait at the feeder, which otherwise decides nothing."""
USERS = 12


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded app."""

    file: str
    runs: int
    """Number of runs of a trace of this workload alone."""
    runs_per_s: float
    """Runs per second of about the worker's capacity."""


RECORDED: Mapping[str, Recorded] = {
    "autocoderover": Recorded("autocoderover_run_1.jsonl.gz", 70, 0.20),
    "tot": Recorded("tot_game24.jsonl.gz", 24, 0.17),
    "tau-airline": Recorded("tau_airline_gpt4o.jsonl.gz", 60, 0.50),
    "sweagent": Recorded("sweagent_cost_2_1.jsonl.gz", 90, 0.33),
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Runs of one or several apps, on a worker with batches of a given size."""

    apps: tuple[str, ...]
    share: float = 1.0
    """Fraction of the runs of each app."""
    runs: int | None = None
    """Number of runs of each app; None: that of its separate trace."""
    costs: CostModel = SMALL
    loads: Mapping[str, float] = field(default_factory=lambda: {"at once": 100.0})
    """Arrivals relative to the capacity of a worker with small batches."""


MIX = "mix"
WIDE = "mix of 3, batches of 256"
WORKLOADS: Mapping[str, Workload] = {
    **{app: Workload((app,)) for app in RECORDED},
    MIX: Workload(tuple(RECORDED), 0.35, loads={"at once": 100.0, "2x": 2.0}),
    WIDE: Workload(tuple(RECORDED)[:3], runs=100, costs=COST_MODELS["a100-llama3-8b"]),
}
PRIORITIES: Mapping[str, Mapping[str, Any]] = {
    "arrival": {"feeder.run_priority": "arrival"},
    "progress": {"feeder.run_priority": "progress"},
    "true calls left": {"feeder.run_priority": "progress"},
    "no priority": {"feeder.interaction_priority": False},
}
"""Options of the default system, by the name in the report's rows."""
ARRIVAL, PROGRESS, KNOWN, NONE = PRIORITIES


class KnownCall(Call):
    """A call that knows the number of remaining calls of its run, whatever was predicted."""

    __slots__ = ("left",)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "left" if name == "remaining_calls" else name)


class KnowingReplay(Replay):
    """Replay in which all calls know the number of remaining calls of their runs."""

    def _submit(self, live: Any) -> None:
        if not isinstance(live.call, KnownCall):
            same = {each.name: getattr(live.call, each.name) for each in fields(Call)}
            live.call = KnownCall(**same)
            live.call.left = float(live.run.left)
        super()._submit(live)


def _ratio(key: str, part: str) -> Column:
    name = {"mean": "mean", "p50": "p50", "p99": "p99"}[part]
    return Column(name, lambda pair: pair[0][key][part] / pair[1][key][part], 3)


COLUMNS = (
    _ratio("interaction_latency_s", "mean"),
    _ratio("interaction_latency_s", "p50"),
    _ratio("interaction_latency_s", "p99"),
    Column("p99 TTFT", lambda pair: pair[0]["ttft_s"]["p99"] / pair[1]["ttft_s"]["p99"], 3),
    Column(
        "tok/s",
        lambda pair: (
            pair[0]["throughput_tokens_per_s"]["total"]
            / pair[1]["throughput_tokens_per_s"]["total"]
        ),
        3,
    ),
    Column("Jain", lambda pair: pair[0]["jain_index"], 3),
    Column("Jain, arrival", lambda pair: pair[1]["jain_index"], 3),
    Column("mean by arrival, s", lambda pair: pair[1]["interaction_latency_s"]["mean"]),
)
_MEAN, _, _P99, _, _TOKENS, _JAIN, _JAIN_BEFORE, _ = COLUMNS


def run_progress(setting: Setting) -> Report:
    """Run each app alone and their mix, under several loads."""
    jobs: dict[str, list[Job]] = {}
    for workload, what in WORKLOADS.items():
        for load, times in what.loads.items():
            traces = [_trace(setting, what, times, seed) for seed in range(setting.seeds)]
            for priority in PRIORITIES:
                jobs[f"{workload}, {load}, {priority}"] = [
                    _job(trace, what.costs, priority, seed) for seed, trace in enumerate(traces)
                ]
    runs = setting.summaries(jobs)
    rows = {}
    for workload, what in WORKLOADS.items():
        for load in what.loads:
            usual = runs[f"{workload}, {load}, {ARRIVAL}"]
            for priority in (PROGRESS, KNOWN, NONE):
                name = f"{workload}, {load}, {priority}"
                rows[name] = Row(name, measure(COLUMNS, list(zip(runs[name], usual, strict=True))))
    text = (
        f"Cost model {SMALL.name}, one worker, batches of {SMALL.max_running}, KV cache of "
        f"{SMALL.kv_capacity_tokens:,} tokens, so that calls wait at the feeder. {USERS} users of one "
        "tenant. Recorded runs, "
        + ", ".join(f"{round(each.runs * setting.scale)} {app}" for app, each in RECORDED.items())
        + f"; the mix has {WORKLOADS[MIX].share:.0%} of each, the mix of 3 "
        f"{WORKLOADS[WIDE].runs} of each of the first, on the whole worker. Poisson arrivals at so many "
        "times what the worker can do. Times of whole interactions and tokens a second are over "
        f"those by arrival on the same trace. Medians of {setting.seeds} seeds (arrivals, users, decode "
        "step up to 2 % off) with least and greatest."
    )
    title = "runs nearest their expected end first"
    return Report("run-progress", title, text, COLUMNS, list(rows.values()), claims(rows))


def _trace(setting: Setting, what: Workload, times: float, seed: int) -> Trace:
    """Return a trace of the workload. Raises TraceError if the recorded traces are missing."""
    parts, rate = [], 0.0
    for name in what.apps:
        each = RECORDED[name]
        runs = each.runs * what.share if what.runs is None else what.runs
        number = max(2, round(runs * setting.scale))
        trace = setting.recorded(each.file)
        trace = arrive_poisson(trace, rate_per_s=1.0, shuffle=True, seed=seed)
        parts.append(trace.with_interactions(trace.interactions[:number]))
        rate += number / each.runs_per_s
    trace = merge(parts)
    rate = len(trace) / rate  # runs per second that the worker can do in this proportion
    trace = arrive_poisson(trace, rate_per_s=times * rate, shuffle=True, seed=seed)
    return assign_users(trace, users=USERS, seed=seed)


def _job(trace: Trace, costs: CostModel, priority: str, seed: int) -> Job:
    return Job(
        f"{trace.name} {priority}",
        trace,
        SYSTEMS["fairserve"].with_options(PRIORITIES[priority]),
        delayed(costs, seed),
        ReplayOptions(seed=seed),
        replay=KnowingReplay if priority == KNOWN else Replay,
    )


def claims(rows: Mapping[str, Row]) -> list[Check]:
    """Check gains and losses by progress, in medians, and what the priority brings under every seed."""
    ours = {name: row for name, row in rows.items() if name.endswith(f", {PROGRESS}")}
    without = [row for name, row in rows.items() if name.endswith(f", {NONE}")]
    slower = [row for row in without if row.measured[_MEAN.name].least > 1.0]
    mixed = [row for name, row in ours.items() if name.startswith(MIX)]
    return [
        _worst("the mean run is no slower by progress (2 %)", ours.values(), _MEAN, 1.02),
        _worst("in a mix of apps the mean run is faster", mixed, _MEAN, 0.999),
        _worst("the slowest hundredth is at most 10 % slower", ours.values(), _P99, 1.10),
        _worst("throughput is the same (3 %)", ours.values(), _TOKENS, 0.97, least=True),
        Check(
            "Jain's index is the same (0.02)",
            all(_value(row, _JAIN) >= _value(row, _JAIN_BEFORE) - 0.02 for row in ours.values()),
            "; ".join(
                f"{row.name}: {_value(row, _JAIN):.3f}, by arrival {_value(row, _JAIN_BEFORE):.3f}"
                for row in sorted(
                    ours.values(), key=lambda row: _value(row, _JAIN) - _value(row, _JAIN_BEFORE)
                )[:1]
            ),
        ),
        Check(
            "without priority of runs in progress the mean run of some workload is slower under every "
            "seed",
            bool(slower),
            "; ".join(f"{row.name}: {_value(row, _MEAN):.3f}" for row in slower) or "none",
        ),
    ]


def _value(row: Row, column: Column) -> float:
    return row.measured[column.name].value


def _worst(
    claim: str, rows: Sequence[Row] | Any, column: Column, bound: float, *, least: bool = False
) -> Check:
    worst = (min if least else max)(rows, key=lambda row: _value(row, column))
    seen = _value(worst, column)
    return Check(claim, seen >= bound if least else seen <= bound, f"{seen:.3f}: {worst.name}")
