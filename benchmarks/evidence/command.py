"""``fairserve reproduce status`` and ``short-cases``: whether reports are as new as the code.

Exit codes: 0 done, and no report is stale or missing; 1 one is; 2 wrong use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from fairserve.benchmarks.evidence.origin import (
    COMMITTED,
    RESULTS,
    Figures,
    present_origin,
    read_figures,
    read_origin,
    write_figures,
)
from fairserve.benchmarks.evidence.reports import EVIDENCE, Evidence
from fairserve.benchmarks.text_table import aligned
from fairserve.platform.base.command_line import CommandError, CommandGroup

State = Literal["fresh", "stale", "measured", "missing"]

app = CommandGroup(help="Manage the reports in benchmarks/results.")

_Results = Annotated[
    Path | None,
    Option(metavar="DIR", help="Reports; default: benchmarks/results of the checkout."),
]


@dataclass(frozen=True, slots=True)
class ReportState:
    """One report and its state."""

    evidence: Evidence
    state: State
    revision: str = ""
    """Revision of the code that was measured, as far as its document names one."""

    @property
    def failed(self) -> bool:
        """Return whether `make check` rejects the state."""
        return self.state == "stale" or (self.state == "missing" and not self.evidence.needs)

    def to_plain(self) -> dict[str, Any]:
        """Return the state for ``--json``."""
        return {
            "name": self.evidence.name,
            "state": self.state,
            "revision": self.revision,
            "needs": self.evidence.needs,
            "document": self.evidence.document,
            "command": self.evidence.full_command,
            "takes": self.evidence.takes,
            "short_cases": list(self.evidence.short_cases),
        }


def state_of(evidence: Evidence, results: Path, committed: Mapping[str, Figures]) -> ReportState:
    """Return whether a report is as new as the code; measured times are those of their revision."""
    document = results / evidence.document
    if not document.is_file():
        return ReportState(evidence, "missing")
    if not evidence.short_cases:
        return ReportState(evidence, "measured", _revision(document))
    now = present_origin(evidence.name, evidence.command, committed)
    return ReportState(evidence, "fresh" if read_origin(document) == now else "stale")


def _revision(document: Path) -> str:
    if document.suffix != ".json":
        return ""
    machine = json.loads(document.read_text(encoding="utf-8")).get("machine", {})
    return str(machine.get("revision", ""))


def status_text(found: Iterable[ReportState]) -> str:
    """Return a table of the reports, what some need, and the next step."""
    found = list(found)
    rows = [
        (
            each.evidence.name,
            f"{each.state} at {each.revision}" if each.revision else each.state,
            each.evidence.takes,
            each.evidence.full_command,
        )
        for each in found
    ]
    parts = [aligned(("report", "state", "takes", "command"), rows, left=(0, 1, 3))]
    parts += [f"{e.evidence.name} needs {e.evidence.needs}" for e in found if e.evidence.needs]
    if failed := [each.evidence.name for each in found if each.failed]:
        parts.append(f"Not as new as the code: {', '.join(failed)}. Run the command again.")
    return "\n".join(parts)


@app.command()
def status(
    results: _Results = None,
    as_json: Annotated[bool, Option("--json", help="As a JSON document.")] = False,
) -> int:
    """Show which reports are older than the code. Exit code 1 if any is."""
    folder = _folder(results)
    committed = read_figures(_committed(folder))
    found = [state_of(each, folder, committed) for each in EVIDENCE.values()]
    plain = {"reports": [each.to_plain() for each in found]}
    print(json.dumps(plain, indent=2) if as_json else status_text(found))
    return int(any(each.failed for each in found))


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


COMMANDS = ("status", "short-cases")
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
