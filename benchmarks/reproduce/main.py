"""``fairserve reproduce NAME | all``: tables and figures of the papers, published beside measured.

A document ends with its origin (:mod:`fairserve.benchmarks.evidence.origin`), which ``status`` and
``short-cases`` are about (:mod:`fairserve.benchmarks.evidence.command`).

Exit codes: 0 reproduced, whatever the claims; 2 wrong use, with one line on stderr and nothing written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fairserve.benchmarks.evidence import command as evidence
from fairserve.benchmarks.evidence.origin import ReportOrigin, present_origin, read_figures
from fairserve.benchmarks.evidence.reports import EVIDENCE, reproduce_command
from fairserve.benchmarks.plots import plot_folder
from fairserve.benchmarks.reproduce.default.ablation import ablation
from fairserve.benchmarks.reproduce.default.headline import headline
from fairserve.benchmarks.reproduce.default.memory import memory
from fairserve.benchmarks.reproduce.default.tuning import tuning
from fairserve.benchmarks.reproduce.dlpm.figures import dlpm_figure1, dlpm_figure7
from fairserve.benchmarks.reproduce.fairserve.paper import fairserve_paper
from fairserve.benchmarks.reproduce.profiles.levers import profiles
from fairserve.benchmarks.reproduce.report import Report
from fairserve.benchmarks.reproduce.setting import Setting
from fairserve.benchmarks.reproduce.vtc.figures import vtc_figures
from fairserve.benchmarks.reproduce.vtc.tables import vtc_table2, vtc_tables
from fairserve.benchmarks.simulate.command import write_json
from fairserve.engine.simulated.traces.model import TraceError
from fairserve.platform.base.command_line import CommandError, CommandGroup, file_to_write, taking

EXPERIMENTS: Mapping[str, Callable[[Setting], Report | Sequence[Report]]] = {
    "headline": headline,
    "vtc-table2": vtc_table2,
    "vtc-tables": vtc_tables,
    "vtc-figures": vtc_figures,
    "dlpm-figure1": dlpm_figure1,
    "dlpm-figure7": dlpm_figure7,
    "fairserve-paper": fairserve_paper,
    "tuning": tuning,
    "ablation": ablation,
    "memory": memory,
    "profiles": profiles,
}


app = CommandGroup()


def _known(name: str) -> str:
    if name not in EXPERIMENTS and name != "all":
        raise ValueError(f"{name!r} is unknown; known: {', '.join(EXPERIMENTS)}, all")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproduceArguments:
    """Arguments of ``fairserve reproduce``."""

    name: Annotated[
        str,
        Argument(parser=_known, metavar="NAME", help="Name of a table or figure, or all."),
    ]
    traces: Annotated[
        Path | None,
        Option(envvar="FAIRSERVE_TRACES", metavar="DIR", help="Folder of the recorded traces."),
    ] = None
    seeds: Annotated[int, Option(min=1, metavar="N", help="Seeds of each row.")] = 5
    jobs: Annotated[int, Option(min=1, metavar="N", help="Cores to use.")] = 1
    json: Annotated[
        Path | None, Option(parser=file_to_write, metavar="OUT", help="Write all figures.")
    ] = None
    markdown: Annotated[
        Path | None,
        Option(parser=file_to_write, metavar="OUT", help="Write the report as a document."),
    ] = None
    plot: Annotated[
        Path | None, Option(parser=plot_folder, metavar="DIR", help="Draw plots here.")
    ] = None


@app.command(
    epilog=f"Names: {', '.join(EXPERIMENTS)}. Commands about the reports in benchmarks/results: "
    f"{', '.join(evidence.COMMANDS)}."
)
@taking(ReproduceArguments)
def reproduce(arguments: ReproduceArguments) -> int:
    """Reproduce a table or figure of the papers in simulation."""
    setting = Setting(
        traces=arguments.traces,
        seeds=arguments.seeds,
        processes=arguments.jobs,
        plots=arguments.plot,
        say=_say,
    )
    names = list(EXPERIMENTS) if arguments.name == "all" else [arguments.name]
    # Before anything runs, so that they are those of the code that runs.
    origins = {name: _origin(name, arguments) for name in names}
    made_by: dict[str, Sequence[Report]] = {}
    for name in names:
        begin_s = time.monotonic()
        try:
            made = EXPERIMENTS[name](setting)
        except TraceError as error:
            raise CommandError(str(error)) from error
        made_by[name] = [made] if isinstance(made, Report) else made
        for report in made_by[name]:
            print(report.text())
            print(flush=True)
        _say(f"{name}: {time.monotonic() - begin_s:.0f} s")
    if arguments.json is not None:
        document = {
            "reports": [report.to_plain() for each in made_by.values() for report in each],
            "origins": {name: asdict(origin) for name, origin in origins.items() if origin},
        }
        write_json(document, arguments.json)
    if arguments.markdown is not None:
        arguments.markdown.write_text(
            "\n".join(_document(name, made, origins[name]) for name, made in made_by.items()),
            encoding="utf-8",
        )
    return 0


def _origin(name: str, arguments: ReproduceArguments) -> ReportOrigin | None:
    draws = name in EVIDENCE and EVIDENCE[name].draws
    plot = arguments.plot is not None and draws
    return present_origin(name, reproduce_command(name, arguments.seeds, plot), read_figures())


def _document(name: str, reports: Sequence[Report], origin: ReportOrigin | None) -> str:
    parts = [f"# {name}\n", *(report.markdown() for report in reports)]
    return "\n".join(parts if origin is None else [*parts, origin.line()])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
