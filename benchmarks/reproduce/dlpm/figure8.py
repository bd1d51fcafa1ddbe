"""Figure 8 of the DLPM paper: chats on two workers, two of four clients flooding for a while.

The paper replays recorded conversations at rates that it does not give. Here they are drawn;
clients 2 and 3 start 16 times as many as clients 0 and 1, and as many from the middle on. A
worker's batch is limited to 128 sequences: if memory were the only limit, running calls would fill
the pool in a flood, nothing of a conversation would still be cached at its next turn, and no order
of the queue could find hits.
"""

from __future__ import annotations

from dataclasses import replace

from fairserve.benchmarks.reproduce.claims import at_most, less_by_median
from fairserve.benchmarks.reproduce.dlpm.over_time import HITS, THROUGHPUT, OverTime, grid, response
from fairserve.benchmarks.reproduce.dlpm.systems import COSTS, OURS, SEVERAL_WORKERS
from fairserve.benchmarks.reproduce.figure import Figure, Rows
from fairserve.benchmarks.reproduce.report import Check, Column, Report
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.engine.simulated.traces.generate.dlpm_programs import DLPM_WORKLOADS
from fairserve.engine.simulated.traces.generate.programs import ProgramClient, generate_programs
from fairserve.engine.simulated.traces.model import Trace

WORKERS = 2
CONVERSATIONS_PER_S = 0.15
"""Conversations per second of a calm client, for each worker."""
FLOOD = 16.0
DURATION_S = 300.0
AFTER_S = 120.0
"""Seconds of replay after the last conversation began."""
MOST_RUNNING = 128
LOW_S = 3.0
"""Maximum mean response time in seconds that counts as low."""
SYSTEMS = tuple(name for name in SEVERAL_WORKERS if name != "preble")
CALM, FLOODING = ("client-0", "client-1"), ("client-2", "client-3")


def trace_of(seed: int, scale: float) -> Trace:
    """Return the conversations of one seed, clients numbered as in the paper."""
    workload = DLPM_WORKLOADS["chat"]
    load = replace(
        workload.load,
        programs_per_s=CONVERSATIONS_PER_S,
        workers=WORKERS,
        flood=FLOOD,
        duration_s=DURATION_S * scale,
    )
    clients = [
        ProgramClient(name, workload.well_behaved, load.arrivals(flooding=False), "well-behaved")
        for name in CALM
    ]
    clients += [
        ProgramClient(name, workload.more_requests, load.arrivals(flooding=True), "misbehaving")
        for name in FLOODING
    ]
    return generate_programs("chat-flood", clients, load.duration_s, seed)


def _served(history: ServiceHistory) -> float:
    """Return the service of clients 0 and 1 while the others flood, without the first tenth."""
    middle_s = history.end_s * DURATION_S / (DURATION_S + AFTER_S) / 2
    return sum(history.served_per_s(client, 0.2 * middle_s, middle_s) for client in CALM)


_CALM_MEAN = response("0, 1: mean response (s)", "well-behaved")
_CALM_P99 = response("0, 1: p99", "well-behaved", "p99")
_CALM_SERVED = Column("0, 1: service/s in the flood", _served)
_FLOOD_MEAN = response("2, 3: mean response (s)", "misbehaving")
_FLOOD_MOST = Column("2, 3: greatest window (s)", lambda h: h.greatest_response_s(*FLOODING), 1)
COLUMNS = (THROUGHPUT, HITS, _CALM_MEAN, _CALM_P99, _CALM_SERVED, _FLOOD_MEAN, _FLOOD_MOST)


def claims(rows: Rows) -> list[Check]:
    """Check the paper's claims, and those for this project's default."""
    vtc, lpm, d2lpm, ours = (rows[name] for name in ("vtc", "rr-lpm", "d2lpm", OURS))
    checks = []
    for row in (vtc, d2lpm, ours):
        claim = "clients 0 and 1 wait less than under rr-lpm"
        checks.append(less_by_median(claim, row, lpm, _CALM_MEAN.name, 1))
        checks.append(at_most("their mean response time is low", row, _CALM_MEAN.name, LOW_S, 1))
        claim = "clients 0 and 1 get less service than under " + row.name
        checks.append(less_by_median(claim, lpm, row, _CALM_SERVED.name))
    claim = "clients 2 and 3 wait longer than under d2lpm"
    checks.append(
        Check(
            f"vtc: {claim} (mean)",
            vtc.measured[_FLOOD_MEAN.name].value > d2lpm.measured[_FLOOD_MEAN.name].value,
            f"{vtc.measured[_FLOOD_MEAN.name].value:.1f} s against "
            f"{d2lpm.measured[_FLOOD_MEAN.name].value:.1f} s",
        )
    )
    claim = "clients 2 and 3 wait less than under vtc, in the worst window"
    checks.append(less_by_median(claim, d2lpm, vtc, _FLOOD_MOST.name, 1))
    checks.append(less_by_median("has less throughput than d2lpm", vtc, d2lpm, THROUGHPUT.name))
    claim = "clients 2 and 3 wait less than under vtc"
    checks.append(less_by_median(claim, ours, vtc, _FLOOD_MEAN.name, 1))
    checks.append(less_by_median("has less throughput than " + OURS, vtc, ours, THROUGHPUT.name))
    return checks


FIGURE = OverTime(
    Figure(
        8,
        "conversations on two workers, two of four clients flooding",
        COLUMNS,
        claims,
        grid(("response", "service"), SYSTEMS),
        paper="dlpm",
        across=len(SYSTEMS),
        published={"vtc": {_FLOOD_MOST.name: 80.0}},
    ),
    SYSTEMS,
    WORKERS,
    trace_of,
    replace(COSTS, max_running=MOST_RUNNING),
    DURATION_S + AFTER_S,
)


def dlpm_figure8(setting: Setting) -> Report:
    """Run four systems until some time after the last arrival."""
    rate = CONVERSATIONS_PER_S * WORKERS
    return FIGURE.report(
        setting,
        f"At most {MOST_RUNNING} sequences in a batch. Conversations of 4 turns on average, {rate:g}/s "
        f"of clients 0 and 1, {rate * FLOOD:g}/s of clients 2 and 3 in the first half of "
        f"{DURATION_S * setting.scale:g} s and {rate:g}/s after it (all chosen); the replay stops "
        f"{AFTER_S * setting.scale:g} s later.",
    )
