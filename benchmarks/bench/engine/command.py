"""The command ``fairserve bench engine``.

torch and transformers are imported after the arguments are parsed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from collections.abc import Sequence

from fairserve.benchmarks.bench.engine import document as text
from fairserve.benchmarks.bench.engine.figures import FIGURES
from fairserve.benchmarks.bench.engine.workloads import NAMES
from fairserve.benchmarks.bench.figures_command import output, rounds, say
from fairserve.benchmarks.bench.measure import MIN_ROUNDS
from fairserve.benchmarks.bench.report import details, table
from fairserve.benchmarks.evidence.origin import present_mark
from fairserve.benchmarks.evidence.reports import command_line

SHAPE_NAMES = ("5m", "100m", "0.6b", "8b")
_NONE = "none"


def main(argv: Sequence[str], *, scale: float = 1.0) -> int:
    """Measure, print, write. A smaller ``scale`` is for tests.

    Returns 0 if it has measured, 1 if it cannot or engines disagree, 2 after wrong use.
    """
    options = _options(argv)
    if options.fit is not None and importlib.util.find_spec("scipy") is None:
        return _fails("--fit needs scipy: pip install 'fairserve[bench]'")
    try:
        from fairserve.benchmarks.bench.engine.measurement import measure
    except ImportError as error:
        return _fails(f"{error}: pip install 'fairserve[torch]'")
    from fairserve.benchmarks.bench.engine.contest import DisagreementError

    mark = present_mark("engine", command_of(options))
    begin_s = time.monotonic()
    try:
        measured = measure(options, say, scale)
    except (DisagreementError, ValueError) as error:
        return _fails(str(error))
    document = measured.document
    print()
    if measured.results:
        print(table(measured.results), end="\n\n")
    if document["workloads"]:
        print(text.workload_table(document["workloads"]), end="\n\n")
    print("\n".join([details(measured.results), *text.lines(document)]).strip(), end="\n\n")
    machine, model = document["machine"], document["model"]
    print(
        f"Medians of {options.rounds} rounds with least and greatest; * misses its target. tok/s: "
        "output tokens that were\nasked for over wall time, prefill included. "
        f"{model['name']}, {model['dtype']}, on {machine['device']}, {machine['threads']} threads "
        f"of {machine['cores']} cores; {time.monotonic() - begin_s:.0f} s in all."
    )
    if options.json is not None:
        document["fingerprint"] = mark.to_plain()
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


def command_of(options: argparse.Namespace) -> str:
    """Return the command without names of files, and without what is a default of this machine."""
    settings = {
        "shape": options.shape,
        "device": None if options.device == "auto" else options.device,
        "dtype": None if options.dtype == "auto" else options.dtype,
        "threads": options.threads,
        "limit-s": None if math.isinf(options.limit_s) else f"{options.limit_s:g}",
        "workloads": None if options.workloads == list(NAMES) else " ".join(options.workloads),
        "rounds": options.rounds,
        "fit": options.fit is not None,
    }
    return command_line("fairserve bench engine", settings)


def _fails(reason: str) -> int:
    print(f"fairserve bench engine: {reason}", file=sys.stderr)
    return 1


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fairserve bench engine",
        description="Measure the embedded engine beside transformers' continuous batching and its "
        "generate, with the same random weights and the same requests.",
        epilog="Figures: " + ", ".join(figure.name for figure in FIGURES),
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=output, metavar="OUT", help="write what was measured")
    parser.add_argument(
        "--fit",
        type=output,
        metavar="OUT",
        help="also fit the simulator's cost model to measured passes, write it for "
        "`fairserve simulate --model-cost`, and hold a replay against a run",
    )
    parser.add_argument(
        "--shape",
        choices=SHAPE_NAMES,
        default="100m",
        help="size of the model: 5m and 100m for a CPU, 0.6b and 8b for a GPU (default: 100m)",
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=(*NAMES, _NONE),
        default=list(NAMES),
        metavar="NAME",
        help=f"only these: {', '.join(NAMES)}; {_NONE} for a fit alone",
    )
    parser.add_argument(
        "--rounds", type=rounds, default=5, help=f"{MIN_ROUNDS} or more (default: 5)"
    )
    parser.add_argument(
        "--limit-s",
        type=_seconds,
        default=math.inf,
        metavar="S",
        help="begin no further workload after so many seconds (default: no limit)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of weights and KV cache; auto: float32, on a GPU bfloat16",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda; auto: cuda if there is one")
    parser.add_argument(
        "--threads",
        type=_threads,
        metavar="N",
        help="of the CPU, for all engines (default: torch's; 1 for 5m)",
    )
    options = parser.parse_args(argv)
    if _NONE in options.workloads:
        if len(options.workloads) > 1 or options.fit is None:
            parser.error("--workloads none leaves only the fit: give --fit OUT, and no other name")
        options.workloads = []
    return options


def _threads(value: str) -> int:
    number = int(value)
    if not 1 <= number <= 1024:
        raise argparse.ArgumentTypeError("allowed: 1 to 1024")
    return number


def _seconds(value: str) -> float:
    number = float(value)
    if not number > 0:
        raise argparse.ArgumentTypeError("allowed: over 0")
    return number
