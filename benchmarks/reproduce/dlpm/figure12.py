"""Figure 12 of the DLPM paper: a mix on one worker, two clients with chats, two with programs.

The paper names trees for one of the latter two; for the other a judge is taken. Its rates are not
given: here all four together request more than the worker can do for two minutes, those with
programs most of it, and the run lasts until the last end.
"""

from __future__ import annotations

from fairserve.benchmarks.reproduce.claims import less, less_by_median
from fairserve.benchmarks.reproduce.dlpm.over_time import (
    END,
    HITS,
    JAIN_ACTUAL,
    THROUGHPUT,
    OverTime,
    grid,
    program_mean,
)
from fairserve.benchmarks.reproduce.dlpm.systems import ONE_WORKER, OURS, PUBLISHED, PUBLISHED_TEXT
from fairserve.benchmarks.reproduce.figure import Figure, Rows
from fairserve.benchmarks.reproduce.report import Check, Column, Report
from fairserve.benchmarks.reproduce.service_history import ServiceHistory
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.engine.simulated.traces.generate.dlpm_programs import generate_program_mix
from fairserve.engine.simulated.traces.model import Trace

DURATION_S = 120.0
CHATS_PER_S, TREES_PER_S, JUDGES_PER_S = 0.3, 0.3, 0.6
CHATS = ("client-0", "client-1")
TREES, JUDGE = "client-2", "client-3"


def trace_of(seed: int, scale: float) -> Trace:
    """Return the mix of one seed."""
    return generate_program_mix(
        seed,
        duration_s=DURATION_S * scale,
        chats_per_s=CHATS_PER_S,
        trees_per_s=TREES_PER_S,
        judges_per_s=JUDGES_PER_S,
    )


def _mean_response(history: ServiceHistory, *clients: str) -> float:
    """Return the mean response over the calls of these clients that had a first token."""
    calls = seconds = 0.0
    for client, figures in history.summary["per_client"].items():
        if client.rpartition("/")[2] in clients and figures["ttft_s"]["mean"] is not None:
            calls += figures["calls"]
            seconds += figures["calls"] * figures["ttft_s"]["mean"]
    return seconds / calls if calls else 0.0


_CHAT = Column("chat: mean response (s)", lambda h: _mean_response(h, *CHATS), 1)
_TREE = Column("trees: mean response (s)", lambda h: _mean_response(h, TREES), 1)
_JUDGE = Column("judge: mean response (s)", lambda h: _mean_response(h, JUDGE), 1)
_ALL = Column("all: mean response (s)", lambda h: h.summary["ttft_s"]["mean"], 1)
_PROGRAMS = program_mean("all: program (s)")
_CHAT_PROGRAM = program_mean("chat: program (s)", *CHATS)
_TREE_PROGRAM = program_mean("trees: program (s)", TREES)
_JUDGE_PROGRAM = program_mean("judge: program (s)", JUDGE)
COLUMNS = (
    END,
    THROUGHPUT,
    HITS,
    JAIN_ACTUAL,
    _ALL,
    _CHAT,
    _TREE,
    _JUDGE,
    _PROGRAMS,
    _CHAT_PROGRAM,
    _TREE_PROGRAM,
    _JUDGE_PROGRAM,
)


def claims(rows: Rows) -> list[Check]:
    """Check the paper's claims for both forms of DLPM and for this project's default."""
    vtc, lpm = rows["vtc"], rows["lpm"]
    checks = []
    for name in (PUBLISHED, "dlpm", OURS):
        row = rows[name]
        for other in (vtc, lpm):
            claim = f"responds sooner than {other.name}, mean of all calls"
            checks.append(less_by_median(claim, row, other, _ALL.name, 1))
            claim = f"programs end sooner than under {other.name}, mean of all"
            checks.append(less_by_median(claim, row, other, _PROGRAMS.name, 1))
        checks.append(less_by_median("all is done before vtc's end", row, vtc, END.name))
        claim = "clients in conversations wait less than half as long as under lpm"
        checks.append(less(claim, row, lpm, _CHAT.name, 0.5, 1))
        if name != OURS:
            claim = "shares actual service less evenly than vtc"
            checks.append(less_by_median(claim, row, vtc, JAIN_ACTUAL.name, 3))
    claim = "the client with trees waits less than those in conversations"
    trees, chats = lpm.measured[_TREE.name].value, lpm.measured[_CHAT.name].value
    checks.append(Check(f"lpm: {claim}", trees < chats, f"{trees:.1f} s against {chats:.1f} s"))
    return checks


FIGURE = OverTime(
    Figure(
        12,
        "a mix of conversations and programs on one worker",
        COLUMNS,
        claims,
        grid(("response", "actual"), ONE_WORKER),
        paper="dlpm",
        across=len(ONE_WORKER),
    ),
    ONE_WORKER,
    1,
    trace_of,
)


def dlpm_figure12(setting: Setting) -> Report:
    """Run five systems until the last end."""
    return FIGURE.report(
        setting,
        f"Clients 0 and 1 start {CHATS_PER_S:g} conversations/s each, client 2 {TREES_PER_S:g} trees/s "
        f"of 30 calls, client 3 {JUDGES_PER_S:g} judgements/s of 3 calls (chosen), for "
        f"{DURATION_S * setting.scale:g} s, then to the last end. Response: to a call's first token; "
        f"program: from its arrival to its last end. {PUBLISHED_TEXT}",
    )
