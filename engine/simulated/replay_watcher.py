"""Observer of a replay: receives every call and run with its owner."""

from __future__ import annotations

from typing import Protocol

from fairserve.interactions.call import Call
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.scheduling.events import Refuse
from fairserve.scheduling.metrics import CallSample


class ReplayWatcher(Protocol):
    """Observer that is notified in virtual time: seconds since the trace's zero."""

    def call_ended(
        self, call: Call, sample: CallSample, worker: str | None, refusal: Refuse | None
    ) -> None:
        """Handle the end or the rejection of a call; a retried call is reported again."""
        ...

    def run_ended(self, end: RunEnd, opened_s: float, ended_s: float) -> None:
        """Handle the end of an admitted interaction."""
        ...
