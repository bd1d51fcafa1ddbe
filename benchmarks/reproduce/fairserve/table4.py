"""Table 4 of the FairServe paper: three diverse applications, each with many requests at once.

As many requests of each app as in the paper arrive within a minute, three times the server's
capacity until the replay stops a minute later (the paper mentions a timeout, without its length).
Chosen: eight users per app, all alike. Work on runs without a final response is wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairserve.benchmarks.reproduce.fairserve.checks import less, measured, not_beaten
from fairserve.benchmarks.reproduce.fairserve.mix import (
    COSTS,
    FS,
    OURS,
    RPM,
    limits_text,
    simulated,
    systems,
    variants,
)
from fairserve.benchmarks.reproduce.fairserve.table3 import total_rate
from fairserve.benchmarks.reproduce.report import Column, Report, Row
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.engine.simulated.traces.generate.agent_apps import AgentApp
from fairserve.engine.simulated.traces.generate.agent_mix import TABLE_4
from fairserve.engine.simulated.traces.generate.arrivals import GammaArrivals
from fairserve.engine.simulated.traces.generate.programs import ProgramClient, generate_programs
from fairserve.engine.simulated.traces.model import Trace

_ARRIVALS_S = 60.0
_UNTIL_S = 120.0
_USERS = 8
"""Number of users of each app."""
_CALLS_PER_RUN = 1.964
"""Mean number of calls of an app's runs."""


def _rate(app: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda summary: float(summary["apps"][app]["prompt_tokens_per_s"])


def _served(app: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda summary: float(summary["apps"][app]["served_requests"])


_APPS = tuple(app.app for app, _ in TABLE_4)
_HEAVY, _HEAVIEST, _LIGHT = _APPS
_WASTED = Column(
    "tokens wasted", lambda s: float(s["unfinished_tokens"] + s["wasted_tokens"]["throttled"])
)
_JAIN = Column("Jain (typical calls)", lambda s: float(s["slice_jain_index"]), 3)
_COLUMNS = (
    *(Column(f"{app}: served", _served(app)) for app in _APPS),
    *(Column(f"{app}: prompt tok/s", _rate(app)) for app in _APPS),
    _WASTED,
    _JAIN,
)
TABLE_4_ROWS: Mapping[str, tuple[float, ...]] = {
    RPM: (56, 4, 2, 360.99, 859.70, 5.19),
    "vtc": (37, 29, 73, 256.14, 374.31, 124.19, 3224),
    "fs-w": (37, 29, 73, 253.41, 390.47, 124.69),
    FS: (37, 27, 80, 258.20, 359.02, 127.58, 461),
}


def three_apps(seed: int, scale: float) -> Trace:
    """Return runs of all users at the same rate per app; about the paper's number of requests."""
    clients = [
        ProgramClient(
            f"{app.app}-user-{user}",
            AgentApp(app.app, app.prompt_tokens, app.output_tokens),
            GammaArrivals(requests / _CALLS_PER_RUN / _USERS / _ARRIVALS_S),
        )
        for app, requests in TABLE_4
        for user in range(_USERS)
    ]
    return generate_programs(
        "three-apps", clients, _ARRIVALS_S * scale, seed, tenant="agents", share_system=True
    )


def fairserve_table4(setting: Setting) -> Report:
    """Run all systems on the three apps."""
    until_s = _UNTIL_S * setting.scale
    traces = [three_apps(seed, setting.scale) for seed in range(setting.seeds)]
    seen = simulated(setting, systems() | variants(), traces.__getitem__, until_s)
    rows = [
        Row(
            name,
            measured(_COLUMNS, summaries),
            {
                column.name: value
                for column, value in zip(_COLUMNS, TABLE_4_ROWS.get(name, ()), strict=False)
            },
        )
        for name, summaries in seen.items()
    ]
    light, heaviest = _rate(_LIGHT), _rate(_HEAVIEST)
    checks = []
    for fair in ("vtc", "fs-w", FS, OURS):
        checks += [
            less(f"{fair}: {_LIGHT} has more prompt tokens/s than under {RPM}",
                 seen, RPM, fair, light),
            less(f"{fair}: {_HEAVIEST} has fewer than under {RPM}", seen, fair, RPM, heaviest),
        ]  # fmt: skip
    for fs in (FS, OURS):
        checks.append(less(f"{fs} wastes fewer tokens than vtc", seen, fs, "vtc", _WASTED.of))
    others = [name for name in systems() if name != OURS]
    checks.append(not_beaten(seen, OURS, others, lambda s: 1 - _JAIN.of(s), "1 - Jain", total_rate))
    text = (
        f"Cost model {COSTS.name} ({COSTS.origin}), one worker. Three apps of {_USERS} users each, "
        f"about {', '.join(f'{requests} requests of {app.app}' for app, requests in TABLE_4)} within "
        f"{_ARRIVALS_S * setting.scale:g} s; the replay stops at {until_s:g} s. {limits_text()} The "
        "paper's rates and numbers of requests do not agree on one length of time, so only directions "
        "are compared. Wasted: tokens of runs that had no final response. Jain's index is over the "
        "users' service in typical calls. Medians of "
        f"{setting.seeds} seeds with least and greatest."
    )
    title = "FairServe, three applications"
    return Report("fairserve-table4", title, text, _COLUMNS, rows, checks)
