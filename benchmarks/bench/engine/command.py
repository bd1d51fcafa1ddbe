"""The command ``fairserve bench engine``.

torch and transformers are imported after the arguments are parsed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import time

from fairserve.benchmarks.bench.engine import document as text
from fairserve.benchmarks.bench.engine.figures import FIGURES
from fairserve.benchmarks.bench.engine.options import EngineBenchOptions
from fairserve.benchmarks.bench.engine.workloads import NAMES
from fairserve.benchmarks.bench.figures_command import say
from fairserve.benchmarks.bench.report import details, table
from fairserve.benchmarks.evidence.reports import command_line
from fairserve.benchmarks.several_values import SeveralValues
from fairserve.platform.base.command_line import FAILED, CommandError, CommandGroup, taking


def bench(options: EngineBenchOptions, scale: float = 1.0) -> None:
    """Measure the embedded engine beside transformers' continuous batching and its generate.

    All have the same random weights and the same requests.
    \f
    Prints and writes the results. A smaller ``scale`` is for tests. Raises CommandError if it cannot
    measure, or if engines disagree.
    """
    command = command_of(options)
    if options.fit is not None and importlib.util.find_spec("scipy") is None:
        raise CommandError("--fit needs scipy: pip install 'fairserve[bench]'", FAILED)
    try:
        from fairserve.benchmarks.bench.engine.measurement import measure
    except ImportError as error:
        raise CommandError(f"{error}: pip install 'fairserve[torch]'", FAILED) from error
    from fairserve.benchmarks.bench.engine.contest import DisagreementError

    begin_s = time.monotonic()
    try:
        measured = measure(options, say, scale)
    except (DisagreementError, ValueError) as error:
        raise CommandError(str(error), FAILED) from error
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
        document["command"] = command
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def command_of(options: EngineBenchOptions) -> str:
    """Return the command without names of files, and without what is a default of this machine."""
    settings = {
        "shape": options.shape,
        "device": None if options.device == "auto" else options.device,
        "dtype": None if options.dtype == "auto" else options.dtype,
        "threads": options.threads,
        "limit-s": None if math.isinf(options.limit_s) else f"{options.limit_s:g}",
        "workloads": None if options.chosen == list(NAMES) else " ".join(options.chosen),
        "rounds": options.rounds,
        "fit": options.fit is not None,
    }
    return command_line("fairserve bench engine", settings)


app = CommandGroup()
app.command("engine", cls=SeveralValues, epilog=f"Figures: {', '.join(f.name for f in FIGURES)}")(
    taking(EngineBenchOptions)(bench)
)
