"""Renews the fingerprint of a report after a change of the code that does not affect its figures.

Two comparisons must succeed: the committed figures of its short cases with those computed now, and
with those at the time of the report. Weakness: a short case runs a part of the report's code, and
draws no plot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fairserve.benchmarks.evidence.committed import Figures, figures_hash
from fairserve.benchmarks.evidence.marks import Mark, StillHolds, write_mark
from fairserve.benchmarks.evidence.short_cases import differences
from fairserve.benchmarks.evidence.status import ReportState

SHOWN = 5
"""Number of differing figures that an error message names."""


class StampError(Exception):
    """A report cannot be stamped; the message gives the reason and the next step."""


class Stamper:
    """Stamps reports below one results folder. Each short case runs once."""

    def __init__(
        self,
        results: Path,
        committed: Mapping[str, Figures],
        run: Callable[[str], Figures],
    ) -> None:
        """``run`` computes the figures of a short case by its name."""
        self._results = results
        self._committed = committed
        self._run = run
        self._seen: dict[str, Figures] = {}

    def stamp(self, report: ReportState) -> None:
        """Write the current fingerprint into the report. Raises StampError if it may be older."""
        evidence, mark = report.evidence, report.mark
        again = f"make it again: {evidence.full_command}"
        if not mark.code:
            raise StampError(f"{evidence.name} has no fingerprint; {again}")
        if mark.command != evidence.command:
            raise StampError(f"{evidence.name} was made by `{mark.command}`; {again}")
        if not evidence.short_cases:
            raise StampError(f"{evidence.name} has no short case; {again}")
        if mark.short_cases != figures_hash(evidence.short_cases, self._committed):
            raise StampError(
                f"{evidence.name} was made before the figures of its short cases changed; {again}"
            )
        for name in evidence.short_cases:
            if lines := differences(self._figures(name), self._committed[name]):
                shown = "; ".join([*lines[:SHOWN], "..."] if len(lines) > SHOWN else lines)
                raise StampError(
                    f"{evidence.name}: its short case {name} gives other figures ({shown}); {again}"
                )
        self._write(report, replace(mark, code=report.now, still_holds=None))

    def hold(self, report: ReportState, reason: str) -> None:
        """Write why the report holds for the current code. Raises StampError without a report."""
        self._write(report, replace(report.mark, still_holds=StillHolds(report.now, reason)))

    def _figures(self, name: str) -> Figures:
        if name not in self._seen:
            self._seen[name] = self._run(name)
        return self._seen[name]

    def _write(self, report: ReportState, mark: Mark) -> None:
        document = self._results / report.evidence.document
        if not document.is_file():
            raise StampError(f"{report.evidence.name}: there is no {document}")
        write_mark(document, mark)
