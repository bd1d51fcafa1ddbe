"""Calls a second of a worker with a local queue: the data plane Envoy as a share of the embedded one.

    python benchmarks/scripts/queued_calls.py [--rounds 9] [--slots 8] [--seconds 4]

The worker is of kind ``openai`` and runs ``--slots`` calls at a time, each for so many milliseconds;
three times as many are open. So the worker has a free slot only between the end of a call and the
begin of the next one, and the throughput shows how long that is. Both planes take turns in each
round. Prints medians over the rounds with minimum and maximum, of the ratios within a round and of the
share of the throughput that the worker alone would have.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from fairserve.benchmarks.bench.gateway.calls import KINDS, MODEL, Shape
from fairserve.benchmarks.bench.gateway.gateways import DATA_PLANES, FairServe
from fairserve.benchmarks.bench.gateway.measurement import Plan, _bench, usable_cores

DURATIONS_MS = (20, 50, 200, 500)
STEP_MS = 2
OPEN_PER_SLOT = 3
PROBES_S = 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    shapes = [Shape(kind, each // STEP_MS) for each in DURATIONS_MS for kind in KINDS]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairserve-bench-")))
        cores = usable_cores()
        bench = stack.enter_context(_bench(Plan(step_ms=STEP_MS), folder, cores))
        fleet = folder / "fleet.json"
        worker = {"id": "w", "url": bench.worker_url, "kind": "openai", "model": MODEL}
        fleet.write_text(json.dumps({"workers": [{**worker, "concurrency": options.slots}]}))
        servers = []
        for plane in DATA_PLANES:
            servers.append(FairServe(plane, folder, bench.worker_url, cores, fleet=fleet))
            stack.callback(servers[-1].stop)
        open_calls = OPEN_PER_SLOT * options.slots

        def rate(server: FairServe, shape: Shape, seconds: float) -> float:
            return bench.load(server, shape, concurrency=open_calls, seconds=seconds).rps

        for server in servers:  # the first calls, until Envoy knows the worker
            for shape in shapes[:2]:
                rate(server, shape, PROBES_S)
        print(f"{options.slots} slots, {OPEN_PER_SLOT} open calls each; {options.rounds} rounds")
        for shape in shapes:
            rates = [
                [rate(server, shape, options.seconds) for server in servers]
                for _ in range(options.rounds)
            ]
            ideal = options.slots / (shape.tokens * STEP_MS / 1000)
            print(
                f"{shape.kind:7}{shape.tokens * STEP_MS:4} ms",
                "envoy / embedded",
                _spread([envoy / embedded for embedded, envoy in rates]),
                *(
                    f"  {server.name} {_spread([each[number] / ideal for each in rates])}"
                    for number, server in enumerate(servers)
                ),
                flush=True,
            )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
