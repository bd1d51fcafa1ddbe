"""Prefix hit rate of the simulator by working set over KV cache, beside a published curve.

    .venv/bin/python benchmarks/scripts/working_set_curve.py

A fixed number of agent sessions is open at a time, in different turns: when one ends, the next one
begins in its place. A session has 15 turns; its context grows from 8,000 to 16,000 tokens by 1,000
to 4,000 tokens a turn, and a tool takes 8 s on average. The *working set* is the number of open
sessions times the mean context, as a share of the KV cache. One worker with the costs of
``a100-llama3-8b`` behind the system ``cache-aware``.

- ``fcfs``: loop ``paged``, and vLLM's order of waiting calls.
- ``lpm``: the same with the order of ``cache-aware`` itself, longest cached prefix first.
- ``side``: as ``fcfs``; each turn is followed by a call of a subagent, with 6,000 to 18,000 tokens
  that no other call repeats. They are not in the working set, and the hit rate is that of the
  sessions' own calls. Their size is chosen so that the curve resembles the published one.
- ``reserving``: as ``fcfs`` with the loop ``prefill-first``.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from fairserve.benchmarks.simulate.job import SimulationJob, run_job
from fairserve.engine.simulated.cost_model import COST_MODELS, Loop
from fairserve.engine.simulated.traces.model import Trace, TraceCall, TraceInteraction
from fairserve.scheduling.registry import SYSTEMS

PUBLISHED = {0.45: 0.93, 0.75: 0.73, 0.87: 0.34, 1.18: 0.04}
"""Hit rate by working set over KV, of recorded coding sessions on H100s (the repository
zetxqx/thunderagent-original-verification)."""
TURNS, SESSIONS_EACH = 15, 4
BLOCK, SESSION_BLOCKS = 64, 10_000
SIDE_TOKENS = (6_000, 18_000)
COSTS = COST_MODELS["a100-llama3-8b"]


@dataclass(frozen=True)
class CurveCell:
    """A simulated worker and its load."""

    local: str = "fcfs"
    loop: Loop = "paged"
    side_calls: bool = False

    def hit_rate(self, share: float, seed: int) -> tuple[float, float]:
        """Return the hit rate of the sessions' own calls, and the tokens per second of all."""
        trace = trace_of(share, seed, self.side_calls)
        system = replace(SYSTEMS["cache-aware"], local=self.local)
        figures = run_job(
            SimulationJob("cell", trace, system, replace(COSTS, loop=self.loop))
        ).summary
        calls = [call for run in trace.interactions for call in run.calls]
        own = sum(call.prompt_tokens for call in calls if call.agent == "main")
        cached = figures["prefix_hit_rate"] * sum(call.prompt_tokens for call in calls)
        return cached / own, figures["throughput_tokens_per_s"]["total"]


CELLS = {
    "fcfs": CurveCell(),
    "lpm": CurveCell(local="lpm"),
    "side": CurveCell(side_calls=True),
    "reserving": CurveCell(loop="prefill-first"),
}


def turns(rng: random.Random) -> Iterator[tuple[int, int, float, int]]:
    """Yield session, context, tool seconds and output of each call of one place."""
    skipped = rng.randrange(TURNS)
    for session in range(SESSIONS_EACH):
        context = rng.randint(8_000, 16_000)
        for turn in range(TURNS):
            if session or turn >= skipped:
                yield session, context, rng.expovariate(1 / 8.0), rng.randint(100, 400)
            context += rng.randint(1_000, 4_000)


def trace_of(share: float, seed: int, side_calls: bool) -> Trace:
    """Return sessions with exactly this working set, all in progress from the start."""
    rng, side = random.Random(seed), random.Random(seed)  # noqa: S311
    goal = share * COSTS.kv_capacity_tokens
    places: list[list[tuple[int, int, float, int]]] = []
    means: list[float] = []
    while sum(means) < goal:
        places.append(list(turns(rng)))
        means.append(fmean(context + output for _, context, _, output in places[-1]))
    scale, runs, alone = goal / sum(means), [], 1_000_000 * SESSION_BLOCKS
    for place, calls in enumerate(places):
        made = []
        for at, (session, context, tool_s, output) in enumerate(calls):
            tokens, first = round(context * scale), (place * SESSIONS_EACH + session)
            blocks = ((first * SESSION_BLOCKS, tokens // BLOCK),)
            deps = (str(at - 1),) if at else ()
            made.append(TraceCall(str(at), "main", deps, tool_s, tokens, 0, output, blocks=blocks))
            if side_calls:
                tokens, alone = side.randint(*SIDE_TOKENS), alone + SESSION_BLOCKS
                blocks = ((alone, tokens // BLOCK),)
                made.append(
                    TraceCall(f"{at}s", "side", (str(at),), 0.0, tokens, 0, 200, blocks=blocks)
                )
        runs.append(TraceInteraction(f"p{place}", "t", "agent", f"u{place}", 0.0, tuple(made)))
    return Trace("sessions", BLOCK, ()).with_interactions(runs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--shares", nargs="+", type=float, default=[*PUBLISHED, 1.5, 2.2])
    arguments = parser.parse_args()
    print("share  published", *(f"{name:>15}" for name in CELLS), "  (hit rate, tokens/s)")
    for share in arguments.shares:
        row = f"{share:5}  {PUBLISHED.get(share, ''):>9}"
        for cell in CELLS.values():
            found = [cell.hit_rate(share, seed) for seed in arguments.seeds]
            hits, speed = (fmean(each) for each in zip(*found, strict=True))
            row += f"  {hits:6.3f} {speed:7,.0f}"
        print(row, flush=True)


if __name__ == "__main__":
    main()
