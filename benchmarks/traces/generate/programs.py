"""Clients that run programs: each arrival starts a graph of calls, with prefixes to be shared.

A program (Tree-of-Thoughts, a judge, ...) is a frozen description; ``runs`` yields the graphs of
one client in order, so that parts shared by a client's runs (a system prompt, a document) can last
from run to run. The DLPM paper considers sharing within a client only; clients with an equal
``owner`` also share their system prompts.

Weakness: a program does not depend on the model's answers; its graph is drawn in advance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fairserve.benchmarks.traces.generate.arrivals import Arrivals
from fairserve.benchmarks.traces.generate.block_ids import BlockIds, IdPrefix
from fairserve.engine.simulated.traces.model import Interaction, Trace, TraceCall

Calls = tuple[TraceCall, ...]
"""Graph of one run, dependencies first."""


class GeneratedProgram(Protocol):
    """A program that a client runs."""

    @property
    def app(self) -> str:
        """Return the name of the application."""
        ...

    def runs(
        self, owner: str, client: str, blocks: BlockIds, rng: np.random.Generator
    ) -> Iterator[Calls]:
        """Yield an endless sequence of runs of a client.

        System prompts belong to the owner, the rest to the client. Advances ``rng`` and ``blocks``.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProgramClient:
    """A user who starts runs of a program at given times."""

    user: str
    program: GeneratedProgram
    arrivals: Arrivals
    group: str = ""


def generate_programs(
    name: str,
    clients: Sequence[ProgramClient],
    duration_s: float,
    seed: int,
    *,
    tenant: str = "dlpm",
    share_system: bool = False,
) -> Trace:
    """Return the trace of the runs that these clients start within a duration.

    With ``share_system`` the clients of an app share one system prompt; otherwise each has its own.
    Every client has a separate random stream.
    """
    blocks = BlockIds()
    interactions = []
    for client, rng in zip(clients, np.random.default_rng(seed).spawn(len(clients)), strict=True):
        app = client.program.app
        owner = app if share_system else f"{app}/{client.user}"
        times = client.arrivals.times_s(duration_s, rng)
        runs = client.program.runs(owner, client.user, blocks, rng)
        # Times are drawn first: the endless generator would draw one run too many.
        for number, (arrival_s, calls) in enumerate(zip(times, runs, strict=False)):
            interactions.append(
                Interaction(
                    interaction_id=f"{client.user}-{number}",
                    tenant=tenant,
                    app=app,
                    user=client.user,
                    arrival_s=float(arrival_s),
                    calls=calls,
                    group=client.group,
                )
            )
    return Trace(name, blocks.block_tokens, ()).with_interactions(interactions)


def call_on(
    call_id: int,
    agent: str,
    deps: tuple[int, ...],
    prompt: IdPrefix,
    system_tokens: int,
    output_tokens: int,
    gap_s: float = 0.0,
) -> TraceCall:
    """Return a call whose whole prompt is this prefix; its first tokens are the system prompt."""
    return TraceCall(
        call_id=str(call_id),
        agent=agent,
        deps=tuple(str(dep) for dep in deps),
        gap_s=gap_s,
        input_tokens=prompt.tokens - system_tokens,
        system_tokens=system_tokens,
        output_tokens=output_tokens,
        blocks=prompt.blocks,
    )
