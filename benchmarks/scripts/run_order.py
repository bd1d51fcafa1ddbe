"""Duration of programs with ``feeder.run_order`` by critical path and by arrival.

    python benchmarks/scripts/run_order.py [--rounds 10] [--traces FOLDER]

The real dispatcher and local schedulers of ``fairserve`` run in virtual time, with two workers of
1,500 tokens of KV cache and one token per call and step. Each user has a number of programs *at
once*; when one ends the next begins, six per user. ``ProgramRun`` runs the programs: a call
declares its expected output and the remaining output to the end of its program. *uneven*: a chain
of ten calls beside thirty short ones, and a last call after all; *branches*: twelve chains of one
to six calls between a first and a last; *random*: thirty calls, each after up to three of those
before it; *recorded*: the graphs of recorded agent programs with their outputs, at most four calls
wide. *Off by*: maximum relative deviation of outputs from the declaration.

The same programs run under both orders, in pairs: the mean over programs of the time from the first
call to the last, by critical path as a share of that by arrival; and likewise the time until all
are done. Medians over the rounds, minimum and maximum.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from virtual_cluster import VirtualCluster, make_call, prompt

from fairserve.benchmarks.traces.reading import read_trace
from fairserve.interactions.call import Call
from fairserve.interactions.programs.program import Program, parse_program
from fairserve.interactions.programs.program_run import ProgramRun
from fairserve.interactions.programs.program_task import Task
from fairserve.scheduling import events as ev
from fairserve.scheduling.registry import SYSTEMS

PROGRAMS = 6
"""Number of programs of each user."""
ORDERS = ("arrival", "critical_path")
Graph = dict[str, tuple[list[str], int]]
"""Parents and expected output tokens by node."""


def uneven(rng: random.Random) -> Graph:
    """Return a chain beside many short independent calls; the last call waits for all."""
    graph: Graph = {f"s{number}": ([], rng.randint(10, 60)) for number in range(30)}
    graph["c0"] = ([], rng.randint(10, 120))
    for step in range(1, 10):
        graph[f"c{step}"] = ([f"c{step - 1}"], rng.randint(10, 120))
    return graph | {"last": ([*graph], rng.randint(10, 40))}


def branches(rng: random.Random) -> Graph:
    """Return parallel chains of different lengths; the last call waits for all of them."""
    graph: Graph = {"first": ([], rng.randint(10, 40))}
    ends = []
    for branch in range(12):
        before = "first"
        for step in range(rng.randint(1, 6)):
            node = f"b{branch}-{step}"
            graph[node] = ([before], rng.randint(10, 120))
            before = node
        ends.append(before)
    return graph | {"last": (ends, rng.randint(10, 40))}


def scattered(rng: random.Random) -> Graph:
    """Return calls that each follow some of the earlier ones."""
    graph: Graph = {}
    for number in range(30):
        known = list(graph)
        parents = rng.sample(known, min(len(known), rng.randint(0, 3)))
        graph[f"n{number}"] = (parents, rng.randint(10, 120))
    return graph


def recorded(folder: Path) -> list[Graph]:
    """Return the graphs of recorded runs; calls have at most 200 tokens, as the workers are small."""
    return [
        {
            call.call_id: (list(call.deps), max(1, min(200, call.output_tokens)))
            for call in run.calls
        }
        for path in sorted(folder.glob("fixtures/otel_*.json"))
        for run in read_trace(path).interactions
    ]


def program_of(graph: Graph) -> Program:
    """Return the program of a graph, as an app would declare it."""
    nodes = [
        {
            "id": node,
            "prompt": "go" + "".join(f" {{{{{parent}.output}}}}" for parent in parents),
            "expected_output_tokens": tokens,
        }
        for node, (parents, tokens) in graph.items()
    ]
    return parse_program({"model": "m", "nodes": nodes})


MADE = {"uneven": uneven, "branches": branches, "random": scattered}


class World:
    """Users and their programs on one cluster."""

    def __init__(
        self,
        order: str,
        seed: int,
        graphs: list[Graph],
        *,
        users: int,
        at_once: int,
        off_by: float,
    ) -> None:
        system = SYSTEMS["fairserve"].with_options({"feeder.run_order": order})
        self.cluster = VirtualCluster(system, workers=2, kv_tokens=1500)
        self.cluster.on_end = self._ended
        self._off_by, self._seed = off_by, seed
        programs = [program_of(graph) for graph in graphs]
        rng = random.Random(seed)  # noqa: S311 - a workload
        self._left = {
            f"u{user}": [rng.choice(programs) for _ in range(PROGRAMS)] for user in range(users)
        }
        self._runs: dict[str, tuple[str, ProgramRun]] = {}
        self._tasks: dict[str, Task] = {}
        self._began_s: dict[str, float] = {}
        self.took_s: list[float] = []
        self._done_s = 0.0
        for user in self._left:
            for _ in range(at_once):
                self._begin(user)

    def _begin(self, user: str) -> None:
        if not self._left[user]:
            return
        run = ProgramRun(self._left[user].pop())
        name = f"{user}-{len(self._left[user])}"
        self._runs[name], self._began_s[name] = (user, run), self.cluster.now_s
        self.cluster.event(ev.InteractionOpened(name, "t", "app", user, declared=True))
        self._call(name, run.start())

    def _call(self, name: str, tasks: list[Task]) -> None:
        user, _ = self._runs[name]
        for task in tasks:
            call_id = f"{name}/{task.task_id}"
            self._tasks[call_id] = task
            rng = random.Random(f"{self._seed} {call_id}")  # noqa: S311 - a workload
            expected = task.expected_output_tokens or 1
            actual = max(1, round(expected * (1 + self._off_by * rng.uniform(-1, 1))))
            self.cluster.arrive(
                make_call(
                    call_id,
                    user=user,
                    run=name,
                    tokens=prompt((1, 64), (rng.randrange(10**9), rng.randint(16, 128))),
                    output=actual,
                    parents=tuple(f"{name}/{parent}" for parent in task.parents),
                    declared=True,
                    declared_output_tokens=expected,
                    remaining_tokens=task.priority,
                )
            )

    def _ended(self, call: Call, outcome: str) -> None:
        assert outcome == "completed", outcome
        name = call.interaction_id
        user, run = self._runs[name]
        self._call(name, run.succeeded(self._tasks.pop(call.call_id).task_id, ""))
        if run.done:
            self._done_s = self.cluster.now_s
            self.took_s.append(self._done_s - self._began_s[name])
            self.cluster.event(ev.InteractionClosed(name))
            self._begin(user)

    def finish(self) -> tuple[float, float]:
        """Return the mean time of a program, and the time until all were done."""
        while len(self.took_s) < len(self._left) * PROGRAMS:
            self.cluster.run(self.cluster.now_s + 1.0)
        return statistics.mean(self.took_s), self._done_s


def compared(kind: str, folder: Path, rounds: int, **options: Any) -> tuple[list[float], ...]:
    """Return per round the seconds of a program by arrival, and both shares."""
    means, shares, wholes = [], [], []
    for seed in range(rounds):
        rng = random.Random(seed)  # noqa: S311 - a workload
        made = MADE.get(kind)
        graphs = recorded(folder) if made is None else [made(rng) for _ in range(20)]
        arrival, path = (World(order, seed, graphs, **options).finish() for order in ORDERS)
        means.append(arrival[0])
        shares.append(path[0] / arrival[0])
        wholes.append(path[1] / arrival[1])
    return means, shares, wholes


def spread(values: list[float]) -> str:
    """Return median, minimum and maximum as text."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    beside = Path(__file__).resolve().parents[3] / "shared" / "traces"
    named = Path(os.environ.get("FAIRSERVE_TRACES", beside))
    parser.add_argument("--traces", type=Path, default=named, help="folder of the recorded graphs")
    asked = parser.parse_args()
    kinds = list(MADE)
    if asked.traces.is_dir():
        kinds.append("recorded")
    print("| programs | users | at once | off by | by arrival, s | a program's time | all done |")
    print("|---|---|---|---|---|---|---|")
    for kind in kinds:
        for users, at_once, off_by in ((2, 1, 0.0), (2, 1, 0.5), (8, 1, 0.0), (4, 4, 0.0)):
            means, shares, wholes = compared(
                kind, asked.traces, asked.rounds, users=users, at_once=at_once, off_by=off_by
            )
            row = f"| {kind} | {users} | {at_once} | {off_by:.0%} | {statistics.median(means):.1f} "
            print(f"{row}| {spread(shares)} | {spread(wholes)} |", flush=True)


if __name__ == "__main__":
    main()
