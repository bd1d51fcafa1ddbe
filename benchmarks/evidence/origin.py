"""Mark of a report that is about to be made, for the commands that write reports."""

from __future__ import annotations

from fairserve.benchmarks.evidence.committed import figures_hash, read_figures
from fairserve.benchmarks.evidence.fingerprint import Fingerprints
from fairserve.benchmarks.evidence.marks import Mark
from fairserve.benchmarks.evidence.reports import EVIDENCE


def present_mark(name: str, command: str, fingerprints: Fingerprints | None = None) -> Mark:
    """Return the mark of a report made by this command with the current code.

    Call this before measuring, since files may change in the meantime. A report that is not in the
    registry has an empty mark.
    """
    evidence = EVIDENCE.get(name)
    if evidence is None:
        return Mark()
    cases = figures_hash(evidence.short_cases, read_figures())
    code = (fingerprints or Fingerprints()).of(evidence, command)
    return Mark(code, command, cases)
