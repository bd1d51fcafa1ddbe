"""The eight cells of ``headline``: what a platform of agents meets, each on its own.

A client aborts a run once it has waited for the first token of a call as long as its time-out
(``Cell.timeout_s``). So a run that is complete has ended in time, and what an aborted run has computed
is wasted. Coding sessions are not aborted: they are in time if they take at most ``_STRETCH`` times as
long as alone, and their tail is that of the whole run.

1. ``flood``: eight users start runs of several calls, three times the capacity.
2. ``tiny calls``: eight users send four small calls a second each, beside a load near capacity.
3. ``crowd``: hundreds of users with a run or two, of three apps whose prompts differ 15-fold.
4. ``agents that fit``: coding sessions whose contexts take half of the caches.
5. ``agents beyond memory``: 2.2 times the caches.
6. ``documents``: four clients ask about long documents, one asks four times as much.
7. ``chat``: conversations, one client sends eight times as much as two that are within their share.
8. ``half load``: the users of the flood alone, at half of the capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from fairserve.benchmarks.reproduce.default.memory import COSTS, RECORDED, recorded_cell
from fairserve.benchmarks.reproduce.default.memory import MemoryCell as AgentCell
from fairserve.benchmarks.reproduce.fairserve.workload import tiny_calls
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.traces.assignment import merge
from fairserve.benchmarks.traces.generate.agent_mix import (
    TABLE_4,
    AgentMixOptions,
    generate_agent_mix,
)
from fairserve.benchmarks.traces.generate.arrivals import GammaArrivals
from fairserve.benchmarks.traces.generate.dlpm_programs import (
    DLPM_WORKLOADS,
    DlpmLoad,
    Misbehaviour,
    generate_dlpm,
)
from fairserve.benchmarks.traces.generate.programs import ProgramClient, generate_programs
from fairserve.engine.simulated.cost_model import CostModel
from fairserve.engine.simulated.replay import Replay
from fairserve.engine.simulated.traces.model import Interaction, Trace
from fairserve.scheduling.directory import NO_LIMITS
from fairserve.scheduling.metrics import ABUSIVE
from fairserve.scheduling.registry import SYSTEMS
from fairserve.throttling.base import Limits

GREEDY = frozenset({ABUSIVE, "misbehaving"})
"""Groups of clients that request more than their share; all others are well-behaved."""
_MIX_S, _CROWD_S = 240.0, 220.0
_TIMEOUT_S, _STRETCH = 30.0, 3.0
_APART_S = 1e5
"""Longer than any run takes."""
_CROWD_USERS = 680
"""Users. About 430 of them arrive, as arrivals are random."""
_DOCUMENTS = replace(DLPM_WORKLOADS["long-context-qa"].load, programs_per_s=1.0, duration_s=120.0)
_FLOOD = AgentMixOptions(
    interactions_per_s=0.5, abusive_users=8, abusive_interactions_per_s=0.5, duration_s=_MIX_S
)
"""Well-behaved users who need less than half of a worker, and abusers who request three times it."""
_MIX_LIMITS = Limits(user_rpm=50, app_rpm=200)
"""Limits of the mix: the user's is twice the busiest minute of any well-behaved user, 28 calls."""


def of_user(run: Interaction) -> str:
    """Return the user of a run."""
    return run.user


@dataclass(frozen=True, slots=True)
class WorkloadCell:
    """A cell, and how its runs are judged."""

    traces: tuple[Trace, ...]
    """A trace for each seed."""
    costs: tuple[CostModel, ...]
    """A cost model for each seed."""
    workers: int
    timeout_s: float = _TIMEOUT_S
    limits: Limits = NO_LIMITS
    arrivals_s: float = math.inf
    """Length of the arrivals, in whose last three quarters throughput is measured; infinite: until all
    runs have ended."""
    part: Callable[[Interaction], str] = of_user
    """Returns whose satisfaction a run counts for; a function of a module."""
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    """Longest time of each run that is in time; empty: a complete run is."""


def recorded_agents(setting: Setting, working_set: float) -> AgentCell:
    """Return recorded coding sessions on four workers. Raises TraceError if the file is missing."""
    return recorded_cell(setting, RECORDED[0], working_set, 4)


def headline_cells(
    setting: Setting, agents: Callable[[Setting, float], AgentCell] = recorded_agents
) -> Mapping[str, WorkloadCell]:
    """Return the cells by name; ``agents`` returns sessions of a working set, contexts over KV.

    Raises TraceError if the recorded traces are missing, before other traces are generated.
    """
    fit, beyond = _agents(agents(setting, 0.5)), _agents(agents(setting, 2.2))
    return {
        "flood": _mix(setting, _FLOOD),
        "tiny calls": _tiny(setting),
        "crowd": crowd(setting),
        "agents that fit": fit,
        "agents beyond memory": beyond,
        "documents": _programs(setting, "long-context-qa", _DOCUMENTS, 4),
        "chat": chat(setting),
        "half load": _mix(
            setting, AgentMixOptions(interactions_per_s=0.5, abusive_users=0, duration_s=_MIX_S)
        ),
    }


def chat(setting: Setting) -> WorkloadCell:
    """Return the cell of conversations."""
    return _programs(setting, "chat", DlpmLoad(1.5, flood=8.0, duration_s=120.0), 2)


def _mix(
    setting: Setting, options: AgentMixOptions, *others: Callable[[int], Trace]
) -> WorkloadCell:
    scaled = replace(options, duration_s=options.duration_s * setting.scale)
    traces = tuple(
        merge([generate_agent_mix(seed, scaled), *(each(seed) for each in others)], name="mix")
        for seed in setting.seed_numbers
    )
    return WorkloadCell(
        traces,
        (COSTS,) * setting.seeds,
        1,
        limits=_MIX_LIMITS,
        arrivals_s=scaled.duration_s,
        part=_app,
    )


def _tiny(setting: Setting) -> WorkloadCell:
    def flood(seed: int) -> Trace:
        clients = [
            ProgramClient(f"abuser-{number}", tiny_calls("tiny"), GammaArrivals(4.0), ABUSIVE)
            for number in range(8)
        ]
        duration_s = _MIX_S * setting.scale
        return generate_programs("tiny", clients, duration_s, seed, tenant="agents")

    benign = AgentMixOptions(interactions_per_s=1.0, abusive_users=0, duration_s=_MIX_S)
    return _mix(setting, benign, flood)


def crowd(setting: Setting) -> WorkloadCell:
    """Return the cell of hundreds of users with a run or two."""
    duration_s, requests = _CROWD_S * setting.scale, sum(count for _, count in TABLE_4)
    users = _CROWD_USERS * setting.scale
    clients = [
        ProgramClient(f"{app.app}-{number}", app, GammaArrivals(1.0 / duration_s, 1.0))
        for app, count in TABLE_4
        for number in range(max(1, round(users * count / requests)))
    ]
    traces = tuple(
        generate_programs("crowd", clients, duration_s, seed, tenant="agents", share_system=True)
        for seed in setting.seed_numbers
    )
    return WorkloadCell(traces, (COSTS,) * setting.seeds, 1, arrivals_s=duration_s, part=_app)


def _agents(cell: AgentCell) -> WorkloadCell:
    trace, costs = cell.traces[0], cell.costs[0]
    deadlines_s = {run_id: _STRETCH * alone_s for run_id, alone_s in _alone_s(trace, costs).items()}
    return WorkloadCell(
        cell.traces,
        cell.costs,
        cell.workers,
        math.inf,
        part=_tenant,
        deadlines_s=deadlines_s,
    )


def _alone_s(trace: Trace, costs: CostModel) -> dict[str, float]:
    """Return how long each run takes alone, on one worker."""
    apart = trace.with_interactions(
        [replace(run, arrival_s=_APART_S * number) for number, run in enumerate(trace.interactions)]
    )
    result = Replay(apart, SYSTEMS["fcfs"], costs).run()
    return {run.interaction_id: run.end_s - run.start_s for run in result.runs}


def _programs(setting: Setting, name: str, load: DlpmLoad, workers: int) -> WorkloadCell:
    scaled = replace(load, workers=workers, duration_s=load.duration_s * setting.scale)
    traces = tuple(
        generate_dlpm(name, Misbehaviour.MORE_REQUESTS, seed, load=scaled)
        for seed in setting.seed_numbers
    )
    return WorkloadCell(traces, (COSTS,) * setting.seeds, workers, arrivals_s=scaled.duration_s)


def _app(run: Interaction) -> str:
    return run.app


def _tenant(run: Interaction) -> str:
    return run.tenant
