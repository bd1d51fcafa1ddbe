"""Figure 4 of the DLPM paper: cost of centralised DLPM by the workers and by the global queue.

This measures this project's Python on the machine that runs it, not a simulation: claims are about
ratios only. Prompts are those of ``fairserve bench scheduling``; a decode step of 25 sequences, by
the cost model, is shown for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairserve.benchmarks.bench.measure import frozen_garbage
from fairserve.benchmarks.reproduce.charts import Chart, draw_charts, line
from fairserve.benchmarks.reproduce.dlpm.central_steps import RUNNING, CentralSteps, StepTimes
from fairserve.benchmarks.reproduce.dlpm.systems import COSTS
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row, measure
from fairserve.benchmarks.reproduce.setting import Setting

QUEUE = 200
"""Length of the queue while the workers are varied, as in the paper."""
WORKERS = 8
"""Number of workers while the queue is varied."""
BY_WORKERS = (1, 2, 4, 8, 16)
BY_QUEUE = (50, 100, 200, 400, 800)
WORKER_TOKENS = 50_000
HELD_TOKENS = 3_200
"""Tokens of a sequence in the decode step: the mean prompt and output of the bench."""
DECODE_MS = 1000 * COSTS.decode_s(RUNNING, RUNNING * HELD_TOKENS, 1)
GROWS = 0.5
"""Minimum growth relative to that of the size that counts as growing with it."""
FLAT = 2.0
SMALL = 0.02
MANY = 10.0
ROUNDS = 3
"""Number of measurements per seed, whose median counts."""
STEPS = 10

STRAWMAN, INDEXED, DECISION, SHARE = (
    "strawman step (ms)",
    "indexed step (ms)",
    "d2lpm decision (ms)",
    "strawman % of a decode step",
)
COLUMNS = (
    Column("queue matched (ms)", lambda t: t.match, 2),
    Column(STRAWMAN, lambda t: t.match + t.indexed, 2),
    Column(INDEXED, lambda t: t.indexed, 2),
    Column(DECISION, lambda t: t.decision, 3),
    Column(SHARE, lambda t: 100 * (t.match + t.indexed) / DECODE_MS, 1),
)
Place = tuple[int, int]
"""Number of workers and length of the queue."""


def dlpm_figure4(
    setting: Setting, workers: Sequence[int] = BY_WORKERS, queues: Sequence[int] = BY_QUEUE
) -> Report:
    """Measure both halves of the figure. A smaller scale makes caches and rounds smaller."""
    by_workers = [(number, QUEUE) for number in workers]
    by_queue = [(WORKERS, queue) for queue in queues]
    places = dict.fromkeys([*by_workers, (WORKERS, QUEUE), *by_queue])
    rows: dict[Place, Row] = {}
    for place in places:
        setting.say(f"Figure 4: {place[0]} workers, {place[1]} calls queued")
        runs = [_measured(*place, seed, setting.scale) for seed in range(setting.seeds)]
        published = {SHARE: 40.0} if place == (WORKERS, QUEUE) else {}
        rows[place] = Row(row_name(place), measure(COLUMNS, runs), published)
    plots = () if setting.plots is None else (_draw(setting.plots, rows, workers, queues),)
    return Report(
        "dlpm-figure4",
        "DLPM, what scheduling in one place costs",
        "Measured on this machine, CPU time of one thread of Python: only ratios say anything. A step "
        "hands a call to each worker; the strawman matches the whole queue against each worker's tree "
        "before it, the index of this project does not. Messages take no time, and nobody waits. "
        f"Prompts of 3,076 tokens on average, trees of {WORKER_TOKENS:,} tokens a worker. A decode step "
        f"of {RUNNING} sequences takes {DECODE_MS:.1f} ms by {COSTS.name}; the paper says that the "
        f"overhead is about 40 % of it with 8 workers. Medians of {setting.seeds} seeds.",
        COLUMNS,
        list(rows.values()),
        claims(rows, workers, queues),
        plots,
    )


def _measured(workers: int, queue: int, seed: int, scale: float) -> StepTimes:
    """Return the round with the median step."""
    tokens = max(5_000, round(WORKER_TOKENS * scale))
    central = CentralSteps(workers, queue, worker_tokens=tokens, seed=seed + 1)
    with frozen_garbage():
        rounds = [central.measure(max(1, round(STEPS * scale))) for _ in range(ROUNDS)]
    return sorted(rounds, key=lambda times: times.match + times.indexed)[ROUNDS // 2]


def row_name(place: Place) -> str:
    """Return the name of the row for a number of workers and queued calls."""
    return f"D = {place[0]}, {place[1]} queued"


def claims(rows: Mapping[Place, Row], workers: Sequence[int], queues: Sequence[int]) -> list[Check]:
    """Check the ratios of the paper's figure, and that an index and D2LPM avoid them."""
    few, many = (workers[0], QUEUE), (workers[-1], QUEUE)
    short, long = (WORKERS, queues[0]), (WORKERS, queues[-1])
    checks = [
        _grows("the strawman's step grows with the workers", rows, few, many, workers),
        _grows("the strawman's step grows with the global queue", rows, short, long, queues),
    ]
    flat = _ratio(rows, DECISION, many, few)
    claim = f"a decision of d2lpm grows by less than {FLAT:g} times with the workers"
    checks.append(Check(claim, flat < FLAT, f"{flat:.2f} times"))
    growth, other = (_ratio(rows, column, long, short) for column in (INDEXED, STRAWMAN))
    claim = "the indexed step grows less than half as much with the global queue as the strawman's"
    seen = f"{growth:.1f} times against {other:.1f} times"
    checks.append(Check(claim, growth < other / 2, seen))
    worst = rows[many].measured
    share = worst[DECISION].value / DECODE_MS
    claim = f"a decision of d2lpm is less than {SMALL:.0%} of a decode step"
    checks.append(Check(claim, share < SMALL, f"{share:.2%} with {workers[-1]} workers"))
    usual = rows[WORKERS, QUEUE].measured
    ratio = usual[STRAWMAN].value / usual[DECISION].value
    claim = f"the strawman's step takes {MANY:g} times d2lpm's decision or more"
    checks.append(Check(claim, ratio >= MANY, f"{ratio:.0f} times"))
    return checks


def _grows(
    claim: str, rows: Mapping[Place, Row], low: Place, high: Place, sizes: Sequence[int]
) -> Check:
    growth, of = _ratio(rows, STRAWMAN, high, low), sizes[-1] / sizes[0]
    return Check(claim, growth >= GROWS * of, f"{growth:.1f} times for {of:g} times as many")


def _ratio(rows: Mapping[Place, Row], column: str, of: Place, by: Place) -> float:
    return rows[of].measured[column].value / rows[by].measured[column].value


def _draw(
    folder: Path, rows: Mapping[Place, Row], workers: Sequence[int], queues: Sequence[int]
) -> str:
    by_workers = [(d, rows[d, QUEUE]) for d in workers]
    by_queue = [(queue, rows[WORKERS, queue]) for queue in queues]
    names = {
        STRAWMAN: "strawman: a step",
        INDEXED: "indexed: a step",
        DECISION: "d2lpm: a decision",
    }
    charts = [
        Chart(
            title,
            x,
            "milliseconds",
            [line(name, places, column, at) for at, (column, name) in enumerate(names.items())],
            {f"decode step, batch {RUNNING}": (DECODE_MS, 7)},
            log_x=True,
            log_y=True,
        )
        for title, x, places in (
            (f"{QUEUE} calls queued", "workers (D)", by_workers),
            (f"{WORKERS} workers", "calls in the global queue", by_queue),
        )
    ]
    return draw_charts(folder / "dlpm-figure4.png", charts)
