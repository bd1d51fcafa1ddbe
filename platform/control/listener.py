"""Observers of the calls and runs of control: sampling, recording of traffic.

Control notifies them on the event loop, in the order of the events. A listener returns at once and
raises nothing. Cost of an event: one call per listener.
"""

from __future__ import annotations

from fairserve.platform.control.call_state import CallState
from fairserve.scheduling.dispatch.events import CallOutcome


class CallListener:
    """Receives the events of calls and runs. Override what you need: each method does nothing.

    ``now_s`` is the time of the monotonic clock. The state of a call is read only.
    """

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Handle the acceptance of a call, which is queued now."""

    def call_granted(self, call: CallState) -> None:
        """Handle the grant of a queued call, which has a worker now."""

    def call_requeued(self, call: CallState) -> None:
        """Handle the return of a call to the queue after its worker failed."""

    def call_started(self, call: CallState, now_s: float) -> None:
        """Handle the first token of a call; ``call.queue_s`` is how long it waited."""

    def call_progressed(self, call: CallState, now_s: float) -> None:
        """Handle new totals in ``call.usage``."""

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Handle the end of an accepted call, with all of its usage; once per call."""

    def call_dropped(self, call: CallState) -> None:
        """Handle the end of an accepted call that the journal could not store: it has no row."""

    def call_refused(self, call: CallState, reason: str, now_s: float) -> None:
        """Handle the rejection of a call that never was accepted."""

    def run_opened(self, tenant: str) -> None:
        """Handle the start of a run, or its reopening."""

    def run_ended(self, tenant: str) -> None:
        """Handle the end of a run."""
