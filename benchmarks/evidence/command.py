"""``fairserve reproduce status``, ``stamp`` and ``short-cases``: whether reports are as new as the code.

Exit codes: 0 done, and no report is stale; 1 a report is stale, or one was not stamped; 2 wrong use.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fairserve.benchmarks.evidence.committed import COMMITTED, read_figures, write_figures
from fairserve.benchmarks.evidence.fingerprint import RESULTS, Fingerprints
from fairserve.benchmarks.evidence.reports import EVIDENCE
from fairserve.benchmarks.evidence.status import (
    FAILED,
    ReportState,
    states,
    status_json,
    status_text,
)
from fairserve.platform.base.command_line import CommandError, CommandGroup

app = CommandGroup(help="Manage the reports in benchmarks/results.")


def _report(name: str) -> str:
    if name not in EVIDENCE:
        raise ValueError(f"unknown report {name}; known: {', '.join(EVIDENCE)}")
    return name


def _reason(text: str) -> str:
    if not text.strip() or "\n" in text:
        raise ValueError("must be one line that is not empty")
    return text.strip()


_Results = Annotated[
    Path | None,
    Option(metavar="DIR", help="Reports; default: benchmarks/results of the checkout."),
]


@app.command()
def status(
    results: _Results = None,
    json: Annotated[bool, Option("--json", help="As a JSON document.")] = False,
) -> int:
    """Show which reports are older than the code. Exit code 1 if any is."""
    found = _states(_folder(results))
    print(status_json(found) if json else status_text(found))
    return int(any(each.state in FAILED for each in found))


@app.command()
def stamp(
    names: Annotated[
        list[str] | None,
        Argument(parser=_report, metavar="NAME", help="Default: all stale reports."),
    ] = None,
    results: _Results = None,
    because: Annotated[
        str | None,
        Option(
            parser=_reason,
            metavar="REASON",
            help="Run nothing, but write why the report still holds, until the code changes again.",
        ),
    ] = None,
) -> int:
    """Write the present fingerprint into stale reports.

    Their short cases must give the same figures as before.
    """
    if because is not None and not names:
        raise CommandError("--because needs the names of the reports that it is about")
    from fairserve.benchmarks.evidence.short_cases import figures_of
    from fairserve.benchmarks.evidence.stamp import Stamper, StampError

    folder = _folder(results)
    stamper = Stamper(folder, read_figures(_committed(folder)), figures_of)
    code = 0
    for each in _states(folder):
        name = each.evidence.name
        wanted = name in names if names else each.state == "stale"
        if not wanted:
            continue
        if each.state == "fresh":
            print(f"{name}: fresh")
            continue
        try:
            if because is None:
                stamper.stamp(each)
            else:
                stamper.hold(each, because)
            print(f"{name}: stamped")
        except StampError as error:
            print(f"fairserve reproduce stamp: {error}", file=sys.stderr)
            code = 1
    return code


@app.command()
def short_cases(
    names: Annotated[list[str], Argument(metavar="NAME", help="Names of the short cases.")],
    results: _Results = None,
) -> None:
    """Run short cases and write their figures to benchmarks/short_cases.json.

    Use it after a change that is meant to change them. The reports that they cover must then be made
    again.
    """
    from fairserve.benchmarks.evidence.short_cases import SHORT_CASES, differences, figures_of

    if unknown := [name for name in names if name not in SHORT_CASES]:
        raise CommandError(f"unknown short case {unknown[0]}; known: {', '.join(SHORT_CASES)}")
    path = _committed(_folder(results))
    committed = read_figures(path)
    for name in names:
        seen = figures_of(name)
        lines = differences(seen, committed.get(name, {}))
        print("\n".join([f"{name}: {len(lines) or 'none'} of its figures changed", *lines]))
        committed[name] = seen
    write_figures(committed, path)


COMMANDS = ("status", "stamp", "short-cases")
"""Names of the commands of :data:`app`."""


def _committed(results: Path) -> Path:
    return results.parent / COMMITTED.name


def _folder(results: Path | None) -> Path:
    folder = results or RESULTS
    if not folder.is_dir():
        raise CommandError(
            f"there is no folder {folder}; reports are in a checkout, not in the installed package"
        )
    return folder


def _states(folder: Path) -> list[ReportState]:
    return states(EVIDENCE.values(), folder, Fingerprints())
