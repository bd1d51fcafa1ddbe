"""``fairserve reproduce NAME | all``: tables and figures of the papers, published beside measured.

Exit codes: 0 reproduced, whatever the claims; 2 wrong use, with one line on stderr and nothing written.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairserve.engine.simulated.traces.model import TraceError
from fairserve.platform.argument_parser import USAGE_ERROR, OneLineParser
from fairserve.platform.reproduce.composition.comparison import composition
from fairserve.platform.reproduce.composition.sensitivity import sensitivity
from fairserve.platform.reproduce.dlpm.figure1 import dlpm_figure1
from fairserve.platform.reproduce.dlpm.figure4 import dlpm_figure4
from fairserve.platform.reproduce.dlpm.figure7 import dlpm_figure7
from fairserve.platform.reproduce.dlpm.figure8 import dlpm_figure8
from fairserve.platform.reproduce.dlpm.figure9 import dlpm_figure9
from fairserve.platform.reproduce.dlpm.figure10 import dlpm_figure10
from fairserve.platform.reproduce.dlpm.figure11 import dlpm_figure11
from fairserve.platform.reproduce.dlpm.figure12 import dlpm_figure12
from fairserve.platform.reproduce.fairserve.figure8 import fairserve_figure8
from fairserve.platform.reproduce.fairserve.figure9 import fairserve_figure9
from fairserve.platform.reproduce.fairserve.table3 import fairserve_table3
from fairserve.platform.reproduce.fairserve.table4 import fairserve_table4
from fairserve.platform.reproduce.profiles.convergence import profiles_convergence
from fairserve.platform.reproduce.profiles.levers import profiles_cap, profiles_levers
from fairserve.platform.reproduce.profiles.progress import run_progress
from fairserve.platform.reproduce.report import Report
from fairserve.platform.reproduce.setting import Setting
from fairserve.platform.reproduce.vtc import tables as vtc_tables
from fairserve.platform.reproduce.vtc.figures import vtc_figures
from fairserve.platform.simulate.arguments import at_least, output, plot_folder
from fairserve.platform.simulate.command import write_json

EXPERIMENTS: Mapping[str, Callable[[Setting], Report | Sequence[Report]]] = {
    "vtc-table2": vtc_tables.vtc_table2,
    "vtc-table3": vtc_tables.vtc_table3,
    "vtc-table4": vtc_tables.vtc_table4,
    "vtc-table5": vtc_tables.vtc_table5,
    "vtc-table6": vtc_tables.vtc_table6,
    "vtc-figures": vtc_figures,
    "dlpm-figure1": dlpm_figure1,
    "dlpm-figure4": dlpm_figure4,
    "dlpm-figure7": dlpm_figure7,
    "dlpm-figure8": dlpm_figure8,
    "dlpm-figure9": dlpm_figure9,
    "dlpm-figure10": dlpm_figure10,
    "dlpm-figure11": dlpm_figure11,
    "dlpm-figure12": dlpm_figure12,
    "fairserve-table3": fairserve_table3,
    "fairserve-table4": fairserve_table4,
    "fairserve-figure8": fairserve_figure8,
    "fairserve-figure9": fairserve_figure9,
    "composition": composition,
    "sensitivity": sensitivity,
    "profiles-convergence": profiles_convergence,
    "profiles-levers": profiles_levers,
    "profiles-cap": profiles_cap,
    "run-progress": run_progress,
}


def main(argv: Sequence[str]) -> int:
    """Reproduce, print, write; returns the exit code."""
    arguments = _parse(argv)
    setting = Setting(
        traces=arguments.traces,
        seeds=arguments.seeds,
        processes=arguments.jobs,
        plots=arguments.plot,
        say=_say,
    )
    reports: list[Report] = []
    for name in EXPERIMENTS if arguments.name == "all" else [arguments.name]:
        begin_s = time.monotonic()
        try:
            made = EXPERIMENTS[name](setting)
        except TraceError as error:
            print(f"fairserve reproduce: {error}", file=sys.stderr)
            return USAGE_ERROR
        for report in [made] if isinstance(made, Report) else made:
            reports.append(report)
            print(report.text())
            print(flush=True)
        _say(f"{name}: {time.monotonic() - begin_s:.0f} s")
    if arguments.json is not None:
        write_json({"reports": [report.to_plain() for report in reports]}, arguments.json)
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(report.markdown() for report in reports))
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        prog="fairserve reproduce",
        description="Reproduce a table or figure of the papers in simulation.",
        epilog="Names: " + ", ".join(EXPERIMENTS),
        allow_abbrev=False,
    )
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"], metavar="NAME", help="or: all")
    folder = os.environ.get("FAIRSERVE_TRACES")
    parser.add_argument(
        "--traces",
        type=Path,
        default=None if folder is None else Path(folder),
        metavar="DIR",
        help="the recorded traces. Environment: FAIRSERVE_TRACES",
    )
    parser.add_argument("--seeds", type=at_least(1), default=5, metavar="N", help="(default: 5)")
    parser.add_argument("--jobs", type=at_least(1), default=1, metavar="N", help="cores to use")
    parser.add_argument("--json", type=output, metavar="OUT", help="write all figures")
    parser.add_argument(
        "--markdown", type=output, metavar="OUT", help="write the report as a document"
    )
    parser.add_argument("--plot", type=plot_folder, metavar="DIR", help="draw plots here")
    return parser.parse_args(argv)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
