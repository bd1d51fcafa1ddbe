"""Figures of ``fairserve bench scheduling``, with their targets and peers.

Peers were measured on one machine with 2,000 similar prompts (mean 3,076 tokens) and eight workers.
The VTC artifact was measured by its function for the next batch, which includes its test of what
fits.
"""

from __future__ import annotations

from functools import partial

from fairserve.benchmarks.bench import contract_calls
from fairserve.benchmarks.bench.decisions import WORKER_TOKENS, Decisions
from fairserve.benchmarks.bench.dlpm_steps import DlpmSteps
from fairserve.benchmarks.bench.figure import BenchWorkload, Figure, FigurePart, sized
from fairserve.benchmarks.bench.figures_command import FiguresCommand
from fairserve.benchmarks.bench.local_cache import LocalCache
from fairserve.benchmarks.bench.long_queues import (
    KINDS,
    TICK,
    Kind,
    LongQueue,
    Ticks,
    call_growth,
    call_us,
)
from fairserve.benchmarks.bench.tree_memory import TreeMemory
from fairserve.benchmarks.bench.vtc_passes import VtcPasses
from fairserve.benchmarks.bench.whole_calls import WholeCallsBench

_ROUTERS = {"sglang rust gateway": 20.0, "preble": 542.0}

DECISION_8 = Figure(
    "d2lpm_decision_us_8w", "us", "a routing decision, 8 workers", 25, aim=15, peers=_ROUTERS
)
DECISION_P99 = Figure("d2lpm_decision_p99_us", "us", "its 99th percentile", 60)
DECISION_64 = Figure("d2lpm_decision_us_64w", "us", "a routing decision, 64 workers", 35, aim=25)
DECISION_256 = Figure("d2lpm_decision_us_256w", "us", "a routing decision, 256 workers", 50, aim=40)
TREE = Figure(
    "tree_bytes_per_token",
    "bytes",
    "the tree of 8 workers, per distinct token",
    12,
    aim=8,
    peers={"sglang": 20.0},
)
CACHE = Figure(
    "prefix_cache_us",
    "us",
    "a call through a local prefix cache",
    30,
    peers={"sglang rust": 30.9, "sglang python": 66.7, "vllm": 351.0},
)
DLPM_128 = Figure(
    "dlpm_step_us_128",
    "us",
    "a DLPM step, 128 calls waiting",
    150,
    peers={"sglang lpm rust": 1160.0},
)
DLPM_10000 = Figure("dlpm_step_us_10000", "us", "a DLPM step, 10,000 calls waiting", 500)
VTC_27 = Figure(
    "vtc_select_us_27",
    "us",
    "a VTC pass of 20 admissions: 27 clients, batch 20",
    10,
    aim=7,
    peers={"vtc artifact": 29.0},
)
VTC_400 = Figure(
    "vtc_select_us_400",
    "us",
    "a VTC pass of 20 admissions: 27 clients, batch 400",
    450,
    aim=150,
    peers={"vtc artifact": 814.0},
)
VTC_1000 = Figure(
    "vtc_select_us_1000",
    "us",
    "a VTC pass of 20 admissions: 1,000 clients, 5,000 queued",
    450,
    aim=150,
    peers={"vtc artifact": 2040.0},
)
DISPATCHER = Figure(
    "dispatcher_calls_per_s",
    "calls per CPU-second",
    "whole lives of calls through the dispatcher",
    8000,
    aim=15_000,
    higher_is_better=True,
)


CONTRACTS = Figure(
    contract_calls.NAME,
    "us",
    "contract limits of a call: up to four holders, every kind",
    60,
    aim=40,
)

TICKS = Figure(TICK, "ms", "a tick, 20,000 tenants with limits and a budget", 10)


def _decisions_8(scale: float) -> BenchWorkload:
    return _decisions(DECISION_8.name, 8, scale, p99_name=DECISION_P99.name)


def _decisions_64(scale: float) -> BenchWorkload:
    return _decisions(DECISION_64.name, 64, scale)


def _decisions_256(scale: float) -> BenchWorkload:
    return _decisions(DECISION_256.name, 256, scale)


def _decisions(name: str, workers: int, scale: float, p99_name: str | None = None) -> BenchWorkload:
    return Decisions(
        name,
        workers,
        p99_name=p99_name,
        worker_tokens=sized(WORKER_TOKENS, scale, 5000),
        outstanding=sized(40, scale),
        decisions=sized(2000, scale),
    )


def _tree(scale: float) -> BenchWorkload:
    return TreeMemory(worker_tokens=sized(WORKER_TOKENS, scale, 5000))


def _cache(scale: float) -> BenchWorkload:
    return LocalCache(
        worker_tokens=sized(400_000, scale, 20_000),
        running=sized(64, scale),
        calls=sized(2000, scale),
    )


def _dlpm_128(scale: float) -> BenchWorkload:
    return _dlpm(DLPM_128.name, 128, scale, clients=100)


def _dlpm_10000(scale: float) -> BenchWorkload:
    return _dlpm(DLPM_10000.name, 10_000, scale, clients=1000)


def _dlpm(name: str, waiting: int, scale: float, *, clients: int) -> BenchWorkload:
    return DlpmSteps(
        name,
        waiting=sized(waiting, scale, 32),
        clients=sized(clients, scale, 10),
        batch=sized(64, scale, 16),
        worker_tokens=sized(WORKER_TOKENS, scale, 50_000),
        steps=sized(100, scale),
    )


def _vtc_27(scale: float) -> BenchWorkload:
    return VtcPasses(
        VTC_27.name, clients=27, queued=500, batch=20, admitted=20, passes=sized(500, scale)
    )


def _vtc_400(scale: float) -> BenchWorkload:
    return VtcPasses(
        VTC_400.name,
        clients=27,
        queued=sized(2000, scale, 30),
        batch=sized(400, scale, 20),
        admitted=20,
        passes=sized(200, scale),
    )


def _vtc_1000(scale: float) -> BenchWorkload:
    return VtcPasses(
        VTC_1000.name,
        clients=sized(1000, scale, 30),
        queued=sized(5000, scale, 60),
        batch=sized(400, scale, 20),
        admitted=20,
        passes=sized(200, scale),
    )


def _dispatcher(scale: float) -> BenchWorkload:
    return WholeCallsBench(
        in_flight=sized(300, scale, 10),
        clients=sized(1000, scale, 20),
        worker_tokens=sized(WORKER_TOKENS, scale, 20_000),
        calls=sized(1500, scale, 10),
    )


def _contracts(scale: float) -> BenchWorkload:
    return contract_calls.ContractCalls(
        users=sized(4000, scale, 20), calls=sized(24_000, scale, 120)
    )


def _long_queue(kind: Kind, scale: float) -> BenchWorkload:
    return LongQueue(kind, queued=sized(10_000, scale, 20), calls=sized(200, scale, 5))


def _ticks(scale: float) -> BenchWorkload:
    return Ticks(TICK, tenants=sized(20_000, scale, 10), ticks=sized(30, scale, 3))


def _queue_part(kind: Kind) -> FigurePart:
    figures = (
        Figure(call_us(kind), "us", f"a served call, 10,000 queued: {kind}", 600),
        Figure(call_growth(kind), "times", "that over its cost with 1,000 queued", 2),
    )
    return FigurePart(figures, partial(_long_queue, kind))


PARTS: tuple[FigurePart, ...] = (
    FigurePart((DECISION_8, DECISION_P99), _decisions_8),
    FigurePart((DECISION_64,), _decisions_64),
    FigurePart((DECISION_256,), _decisions_256),
    FigurePart((TREE,), _tree),
    FigurePart((CACHE,), _cache),
    FigurePart((DLPM_128,), _dlpm_128),
    FigurePart((DLPM_10000,), _dlpm_10000),
    FigurePart((VTC_27,), _vtc_27),
    FigurePart((VTC_400,), _vtc_400),
    FigurePart((VTC_1000,), _vtc_1000),
    FigurePart((DISPATCHER,), _dispatcher),
    FigurePart((CONTRACTS,), _contracts),
    *map(_queue_part, KINDS),
    FigurePart((TICKS,), _ticks),
)

command = FiguresCommand(
    "scheduling",
    "Measure routing decisions, prefix trees, local schedulers, the dispatcher and contract limits, "
    "and hold the figures against targets and peers.",
    PARTS,
)
app = command.app
"""The command ``fairserve bench scheduling``."""
