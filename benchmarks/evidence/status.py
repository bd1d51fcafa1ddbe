"""State of each report: whether it was made by the current code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairserve.benchmarks.evidence.fingerprint import Fingerprints
from fairserve.benchmarks.evidence.marks import Mark, read_mark
from fairserve.benchmarks.evidence.reports import Evidence
from fairserve.benchmarks.text_table import aligned

State = Literal["fresh", "holds", "stale", "missing", "other hardware"]
FAILED: frozenset[State] = frozenset({"stale", "missing"})
"""States that ``make check`` does not accept."""


@dataclass(frozen=True, slots=True)
class ReportState:
    """One report and its state."""

    evidence: Evidence
    state: State
    mark: Mark
    now: str
    """Fingerprint of the current code."""

    @property
    def note(self) -> str:
        """Return why a stale report holds, or what it needs; empty for others."""
        if self.state == "holds" and self.mark.still_holds is not None:
            return f"holds: {self.mark.still_holds.reason}"
        return f"needs {self.evidence.needs}" if self.state == "other hardware" else ""

    def to_plain(self) -> dict[str, Any]:
        """Return the state for ``--json``."""
        return {
            "name": self.evidence.name,
            "state": self.state,
            "note": self.note,
            "document": self.evidence.document,
            "command": self.evidence.full_command,
            "takes": self.evidence.takes,
            "short_cases": list(self.evidence.short_cases),
            "fingerprint": self.now,
        }


def states(
    reports: Iterable[Evidence], results: Path, fingerprints: Fingerprints
) -> list[ReportState]:
    """Return the state of each report below the results folder."""
    return [_state(each, results / each.document, fingerprints.of(each)) for each in reports]


def _state(evidence: Evidence, document: Path, now: str) -> ReportState:
    missing = not document.is_file()
    mark = Mark() if missing else read_mark(document)
    state: State
    if mark.code == now:
        state = "fresh"
    elif mark.still_holds is not None and mark.still_holds.at == now:
        state = "holds"
    elif evidence.needs:
        state = "other hardware"
    else:
        state = "missing" if missing else "stale"
    return ReportState(evidence, state, mark, now)


def status_text(found: Iterable[ReportState]) -> str:
    """Return a table of the reports, why some hold or are made elsewhere, and the next step."""
    found = list(found)
    rows = [
        (each.evidence.name, each.state, each.evidence.takes, each.evidence.full_command)
        for each in found
    ]
    parts = [aligned(("report", "state", "takes", "command"), rows, left=(0, 1, 3))]
    notes = [f"{each.evidence.name}: {each.note}" for each in found if each.note]
    if notes:
        parts.append("\n".join(notes))
    failed = [each.evidence.name for each in found if each.state in FAILED]
    if failed:
        parts.append(
            f"Older than the code: {', '.join(failed)}. Run the command again, or, if the change "
            "moves no figure,\n`fairserve reproduce stamp NAME`; CONTRIBUTING.md has the rules."
        )
    return "\n\n".join(parts)


def status_json(found: Iterable[ReportState]) -> str:
    """Return the states as a JSON document."""
    return json.dumps({"reports": [each.to_plain() for each in found]}, indent=2)
