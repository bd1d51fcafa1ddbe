"""Figure 9 of the DLPM paper: three clients with trees on four workers, one of them with long prefixes.

All start trees of three branches at one rate; client 0 has questions ten times as long. The paper
gives neither rate nor number of trees; here they arrive within a minute, for about five minutes of
work, and the run lasts until the last tree has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairserve.benchmarks.reproduce.claims import at_least, at_most, less_by_median
from fairserve.benchmarks.reproduce.dlpm.over_time import (
    END,
    HITS,
    THROUGHPUT,
    OverTime,
    grid,
    response,
)
from fairserve.benchmarks.reproduce.dlpm.systems import OURS, SEVERAL_WORKERS
from fairserve.benchmarks.reproduce.figure import Figure, Rows
from fairserve.benchmarks.reproduce.report import Check, Column, Report, Row
from fairserve.benchmarks.reproduce.service_history import Floats, ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.engine.simulated.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.engine.simulated.traces.model import Trace
from fairserve.scheduling.metrics import jain_index

WORKLOAD = "tree-of-thoughts-3"
WORKERS = 4
TREES_PER_S = 0.1
"""Trees per second of a client, for each worker."""
DURATION_S = 60.0
UP_TO = 1.8
"""Minimum speed-up that counts as "up to 2 times"."""
BUSY = (0.1, 0.6)
"""Shares of the run between which all clients wait; a client's remaining work ends later."""
IDEAL = 0.95
LITTLE = 0.1
"""Share of an equal share below which a client is starved."""
VICTIMS = ("client-1", "client-2")


def trace_of(seed: int, scale: float) -> Trace:
    """Return the trees of one seed."""
    load = replace(
        DLPM_WORKLOADS[WORKLOAD].load,
        programs_per_s=TREES_PER_S,
        workers=WORKERS,
        duration_s=DURATION_S * scale,
    )
    return generate_dlpm(WORKLOAD, Misbehaviour.LONGER_PREFIX, seed, load=load)


def _starved(history: ServiceHistory) -> float:
    return sum(
        history.starved_s(client, LITTLE) for client in VICTIMS if client in history.accumulated
    )


def _shared(curves: Mapping[str, Floats], history: ServiceHistory) -> dict[str, float]:
    """Return the service per second of each client while all of them wait."""
    begin, end = (share * history.end_s for share in BUSY)
    inside = (begin <= history.times_s) & (history.times_s <= end)
    return {client: float(values[inside].mean()) for client, values in curves.items()}


def _client_0(history: ServiceHistory) -> float:
    """Return client 0's service over the mean of the others'."""
    got = _shared(history.service_per_s, history)
    others = [service for client, service in got.items() if client != "client-0"]
    return got["client-0"] * len(others) / sum(others)


_VICTIMS_MEAN = response("1, 2: mean response (s)", "well-behaved")
_VICTIMS_P99 = response("1, 2: p99", "well-behaved", "p99")
_ALL_MEAN = Column("all: mean response (s)", lambda h: h.summary["ttft_s"]["mean"], 1)
_STARVED = Column("1, 2: starved (s)", _starved)
_CLIENT_0 = Column("client 0 over 1, 2", _client_0, 2)
_JAIN = Column("Jain", lambda h: jain_index(_shared(h.service_per_s, h).values()), 3)
_JAIN_ACTUAL = Column("Jain actual", lambda h: jain_index(_shared(h.actual_per_s, h).values()), 3)
COLUMNS = (
    END,
    THROUGHPUT,
    HITS,
    _JAIN,
    _JAIN_ACTUAL,
    _ALL_MEAN,
    _VICTIMS_MEAN,
    _VICTIMS_P99,
    _STARVED,
    _CLIENT_0,
)


def claims(rows: Rows) -> list[Check]:
    """Check the paper's claims, and those for this project's default."""
    d2lpm, vtc, preble, ours = (rows[name] for name in ("d2lpm", "vtc", "preble", OURS))
    checks = [
        less_by_median(f"ends before {name}", d2lpm, rows[name], END.name)
        for name in ("vtc", "rr-lpm", "preble")
    ]
    checks += [_up_to_two(d2lpm, vtc), _up_to_two(d2lpm, preble)]
    claim = "responds sooner than vtc (mean of all calls)"
    checks.append(less_by_median(claim, d2lpm, vtc, _ALL_MEAN.name, 1))
    for name in ("rr-lpm", "preble"):
        claim = f"clients 1 and 2 wait less than under {name} (p99)"
        checks.append(less_by_median(claim, d2lpm, rows[name], _VICTIMS_P99.name, 1))
    for name in ("vtc", "d2lpm"):
        claim = "shares actual service nearly equally"
        checks.append(at_least(claim, rows[name], _JAIN_ACTUAL.name, IDEAL, 3))
    for name in ("rr-lpm", "preble"):
        claim = "shares actual service less equally than d2lpm"
        checks.append(less_by_median(claim, rows[name], d2lpm, _JAIN_ACTUAL.name, 3))
    claim = "client 0 is served more than the others, since cached tokens count"
    checks.append(at_least(claim, d2lpm, _CLIENT_0.name, 1.05, 2))
    claim = f"clients 1 and 2 starve (under {LITTLE:.0%} of an equal share) for a minute"
    checks.append(at_least(claim, preble, _STARVED.name, 60.0))
    for row in (d2lpm, ours):
        checks.append(at_most("clients 1 and 2 never starve", row, _STARVED.name, 0.0))
    value, other = (row.measured[END.name].value for row in (ours, d2lpm))
    claim = f"{OURS} ends with d2lpm, within 5 %, or before"
    checks.append(Check(claim, value <= 1.05 * other, f"{value:,.0f} s against {other:,.0f} s"))
    return checks


def _up_to_two(d2lpm: Row, other: Row) -> Check:
    ratio = other.measured[END.name].value / d2lpm.measured[END.name].value
    claim = f"d2lpm is up to 2 times as fast as {other.name} (at least {UP_TO:g} counts)"
    return Check(claim, ratio >= UP_TO, f"{ratio:.2f} times")


FIGURE = OverTime(
    Figure(
        9,
        "trees on four workers, client 0 with long prefixes",
        COLUMNS,
        claims,
        grid(("response", "actual", "service"), SEVERAL_WORKERS),
        paper="dlpm",
        across=len(SEVERAL_WORKERS),
    ),
    SEVERAL_WORKERS,
    WORKERS,
    trace_of,
)


def dlpm_figure9(setting: Setting) -> Report:
    """Run five systems until the last end."""
    return FIGURE.report(
        setting,
        f"Three clients with trees of 3 branches, {TREES_PER_S * WORKERS:g} trees/s of each for "
        f"{DURATION_S * setting.scale:g} s (chosen); client 0's questions are 10 times as long. "
        f"Jain: of service between {BUSY[0]:.0%} and {BUSY[1]:.0%} of the run, actual: by the extend "
        "cost. Starved: seconds, of both "
        "clients together, in which one waited and got next to nothing.",
    )
