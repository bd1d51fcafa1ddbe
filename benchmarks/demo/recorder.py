"""Observations of the clients of one system: samples for metrics, counts for the ledger check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fairserve.benchmarks.demo.workload import PlannedRun
from fairserve.scheduling.metrics import CallSample, RunSample

MAX_FAILURES = 20


@dataclass(slots=True)
class Recorder:
    """Recorder filled by the runs; every sent call is in ``calls`` once, with its outcome."""

    calls: list[CallSample] = field(default_factory=list)
    runs: list[RunSample] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of calls by app and outcome."""
    failures: list[str] = field(default_factory=list)
    open_runs: int = 0
    open_calls: int = 0
    started_runs: int = 0
    completed_runs: int = 0
    refused_calls: int = 0

    def run_started(self, plan: PlannedRun) -> None:
        """Record the start of a run."""
        self.started_runs += 1
        self.open_runs += 1

    def run_ended(self, plan: PlannedRun, sample: RunSample) -> None:
        """Record the end of a run."""
        self.open_runs -= 1
        self.completed_runs += sample.complete
        self.runs.append(sample)

    def call_started(self, plan: PlannedRun) -> None:
        """Record a sent call."""
        self.open_calls += 1

    def call_ended(self, plan: PlannedRun, sample: CallSample) -> None:
        """Record an answered, rejected or ended call."""
        self.open_calls -= 1
        self.calls.append(sample)
        self.outcomes[plan.app, sample.outcome] += 1
        self.refused_calls += sample.outcome == "refused"

    def fail(self, message: str) -> None:
        """Record a problem other than a rejection. Only the first ones are kept."""
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(message)
