"""The workloads of the DLPM paper's evaluation: programs, misbehaviours and loads, by name.

Each entry of :data:`DLPM_WORKLOADS` has a well-behaved program and those of a misbehaving client:
S1, more requests (a wider tree, more dimensions, a higher rate), or S2, longer prefixes (Table 3).
Runs of each client start as a gamma process, all at one rate that grows with the number of workers
(section 6.1).

Choices that the paper leaves open: the rates (all clients together overload the paper's server); cv
1; 120 seconds; three clients, one of them misbehaving (section 7.1 mentions clients 0, 1 and 2, of
which 0 misbehaves); four times the rate for QA's S1. ``chat`` is ours: drawn conversations of four
clients, two of which flood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from fairserve.benchmarks.traces.generate.arrivals import (
    Arrivals,
    GammaArrivals,
)
from fairserve.benchmarks.traces.generate.chat import Chat
from fairserve.benchmarks.traces.generate.judge import Judge
from fairserve.benchmarks.traces.generate.long_context_qa import LongContextQa
from fairserve.benchmarks.traces.generate.programs import (
    GeneratedProgram,
    ProgramClient,
    generate_programs,
)
from fairserve.benchmarks.traces.generate.tree_of_thoughts import TreeOfThoughts
from fairserve.engine.simulated.traces.model import Trace


class Misbehaviour(StrEnum):
    """Kind of misbehaviour of the misbehaving clients (Table 3)."""

    NONE = "none"
    MORE_REQUESTS = "S1"
    LONGER_PREFIX = "S2"


@dataclass(frozen=True, slots=True)
class DlpmLoad:
    """Load of a workload."""

    programs_per_s: float
    """Runs per second that a well-behaved client starts for each worker."""
    workers: int = 1
    """Number of workers: the paper's D."""
    clients: int = 3
    misbehaving: int = 1
    """Number of misbehaving clients, which are the first ones."""
    cv: float = 1.0
    duration_s: float = 120.0
    flood: float = 1.0
    """Ratio in S1 of the misbehaving clients' rate to the others'."""

    def arrivals(self, flooding: bool) -> Arrivals:
        """Return the arrival process of one client."""
        rate = self.programs_per_s * self.workers
        return GammaArrivals(rate * self.flood if flooding else rate, self.cv)


@dataclass(frozen=True, slots=True)
class DlpmWorkload:
    """A workload: programs and load."""

    well_behaved: GeneratedProgram
    more_requests: GeneratedProgram
    longer_prefix: GeneratedProgram
    load: DlpmLoad

    def program(self, misbehaviour: Misbehaviour) -> GeneratedProgram:
        """Return the program of a client with this behaviour."""
        if misbehaviour is Misbehaviour.MORE_REQUESTS:
            return self.more_requests
        if misbehaviour is Misbehaviour.LONGER_PREFIX:
            return self.longer_prefix
        return self.well_behaved


DLPM_WORKLOADS: Mapping[str, DlpmWorkload] = MappingProxyType(
    {
        "long-context-qa": DlpmWorkload(
            LongContextQa(),
            LongContextQa(),
            LongContextQa(document_factor=2.0),
            DlpmLoad(1.0, flood=4.0),
        ),
        "tree-of-thoughts": DlpmWorkload(
            TreeOfThoughts(),
            TreeOfThoughts(branches=4),
            TreeOfThoughts(question_factor=10.0),
            DlpmLoad(0.2),
        ),
        "judge": DlpmWorkload(
            Judge(),
            Judge(dimensions=16),
            Judge(extra_tokens=600),
            DlpmLoad(1.0),
        ),
        "chat": DlpmWorkload(
            Chat(),
            Chat(),
            Chat(system_tokens=600),
            DlpmLoad(0.5, clients=4, misbehaving=2, flood=8.0),
        ),
    }
)
"""Workloads by name. For other loads, ``dataclasses.replace`` an entry's ``load``."""


def generate_dlpm(
    workload: str,
    misbehaviour: Misbehaviour | str,
    seed: int,
    *,
    load: DlpmLoad | None = None,
) -> Trace:
    """Return the trace of a workload; clients are ``client-0`` (misbehaving first), ``client-1``, ...

    ``load`` replaces the workload's own. Groups are ``misbehaving`` and ``well-behaved``.
    """
    misbehaviour = Misbehaviour(misbehaviour)
    programs = DLPM_WORKLOADS[workload]
    load = load or programs.load
    clients = []
    for index in range(load.clients):
        wrong = index < load.misbehaving and misbehaviour is not Misbehaviour.NONE
        clients.append(
            ProgramClient(
                user=f"client-{index}",
                program=programs.program(misbehaviour if wrong else Misbehaviour.NONE),
                arrivals=load.arrivals(wrong and misbehaviour is Misbehaviour.MORE_REQUESTS),
                group="misbehaving" if wrong else "well-behaved",
            )
        )
    return generate_programs(f"{workload}-{misbehaviour}", clients, load.duration_s, seed)
