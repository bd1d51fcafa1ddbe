"""Who wants to know more of a replay than its figures: every call and run with its owner."""

from __future__ import annotations

from typing import Protocol

from fairserve.interactions.call import Call
from fairserve.interactions.run_end import RunEnd
from fairserve.scheduling.events import Refuse
from fairserve.scheduling.metrics import CallSample


class ReplayWatcher(Protocol):
    """Told while the replay runs, in virtual time: seconds since the trace's zero."""

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """A call ended, or was refused; one that is tried again is told again."""
        ...

    def run_ended(self, end: RunEnd, opened_s: float, ended_s: float) -> None:
        """An interaction that had been accepted ended."""
        ...
