"""The listener to control: its calls and runs go to the parts that count, record and show them."""

from __future__ import annotations

from fairserve.platform.control.call_state import CallState
from fairserve.scheduling.events import CallOutcome, InteractionEnded


class CallListener:
    """Receives the events of calls and runs. Override what you need: each method does nothing.

    Control calls the methods on the event loop, in the order of the events; each returns at once and
    raises nothing. A call changes while it lives; a listener only reads it, except for
    ``traceparent``. ``now_s`` is the time of the monotonic clock. Cost: one call per listener.
    """

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Handle the acceptance of a call, which is queued now."""

    def call_granted(self, call: CallState) -> None:
        """Handle the grant of a queued call, which has a worker now."""

    def call_requeued(self, call: CallState) -> None:
        """Handle the return of a call to the queue after its worker failed."""

    def call_started(self, call: CallState, now_s: float) -> None:
        """Handle the start of a call at its worker; ``call.queue_s`` is how long it waited.

        For a streamed call that is its first chunk, for any other what reports or implies the start.
        """

    def call_progressed(self, call: CallState, now_s: float) -> None:
        """Handle new totals in ``call.usage``."""

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Handle the end of an accepted call, with all of its usage; once per call."""

    def call_dropped(self, call: CallState) -> None:
        """Handle the end of an accepted call that the journal could not store: it has no row."""

    def call_rejected(self, call: CallState, reason: str, now_s: float) -> None:
        """Handle the rejection of a call that never was accepted."""

    def run_opened(self, tenant: str) -> None:
        """Handle the start of a run, or its reopening."""

    def run_ended(self, run: InteractionEnded) -> None:
        """Handle the end of a run, whose last calls may end later."""
