"""The calls of a process of the former version, as the answers of the newer one describe them.

The process does not apply the log any more, because it would decide otherwise. Of its copy of the cell
the table of calls remains, with its own calls only: answers change it, and become the outputs that the
cell would have had. So whatever executes outputs and reads the table does not see the difference.

Weakness: all else of the copy is as old as the upgrade: counters, limits in headers, workers, runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy

from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.cell import Cell
from fairserve.platform.control.cell_events import (
    CallAnswer,
    CallChange,
    CallMessage,
    CellEvent,
    JournalRow,
    Output,
)
from fairserve.platform.control.log.answers import CallResult, EntryAnswers, InvalidEvent
from fairserve.platform.control.log.shared_cell import NO_ENTRY, EntryId
from fairserve.platform.control.messages import Progress, Release, Submit

logger = logging.getLogger(__name__)

Waits = Sequence[asyncio.Future[None] | None]
"""Futures of those that wait for each event of a batch."""


class AnsweredCalls:
    """Calls from their submission to their end. Changes the table of calls of a cell."""

    def __init__(self, cell: Cell, clock: Callable[[], float]) -> None:
        """The cell has the calls of this process only."""
        self._table, self._clock = cell.calls, clock
        self._calls = {live.record_id: live for live in cell.calls}
        self.answered = NO_ENTRY
        """Entry up to which answers were read."""
        self._unanswered: deque[tuple[EntryId, int, Waits]] = deque()
        """Batches that were read and not answered: entry, number, and who waits for each event."""
        self._silent_ticks = 0

    def wrote(self) -> None:
        """Note a batch of this process."""
        self._silent_ticks = 0

    def tick(self) -> int:
        """Return the ticks since the last batch of this process; 0 without calls."""
        self._silent_ticks = self._silent_ticks + 1 if self._calls else 0
        return self._silent_ticks

    def put(self, event: CellEvent) -> None:
        """Note an event of this process before it is written."""
        match event:
            case Submit(call, record_id, fingerprint):
                now_s = self._clock()
                self._calls[record_id] = CallState(
                    copy(call), record_id, fingerprint, now_s, now_s, source=event.source
                )
            case Progress(call_id, started, usage):
                if (live := self._table.running(call_id)) is not None:
                    live.usage, live.started = usage, live.started or started
            case Release(call_id, usage=usage) if not event.retry_on_another_worker:
                if (live := self._table.running(call_id)) is not None:
                    live.usage, live.ttft_s = usage, event.ttft_s

    def wait_for(self, entry: EntryId, number: int, waits: Waits) -> None:
        """Note who waits for the events of a batch of this process that was read."""
        self._unanswered.append((entry, number, waits))

    def wake(self, up_to: EntryId, invalid: Sequence[InvalidEvent] = (), process: str = "") -> None:
        """Wake who waits for an event of an entry up to this one, with the errors of a process."""
        errors = {
            (each.number, each.place): each.error.error()
            for each in invalid
            if each.process == process
        }
        while self._unanswered and self._unanswered[0][0] <= up_to:
            _, number, waits = self._unanswered.popleft()
            for place, wait in enumerate(waits):
                error = errors.get((number, place))
                if wait is None:
                    if error is not None:
                        logger.warning("an event was not applied: %s", error)
                elif not wait.done():
                    if error is None:
                        wait.set_result(None)
                    else:
                        wait.set_exception(error)

    def end_waits(self, error: Exception) -> None:
        """Give an error to all that wait for events of batches that were read."""
        for _, _, waits in self._unanswered:
            for wait in waits:
                if wait is not None and not wait.done():
                    wait.set_exception(error)

    def requeues(self) -> list[CellEvent]:
        """Return events that queue the waiting calls once more, for grants that are read.

        An answer may have been missed. The cell ignores the event for a call that is still queued.
        """
        return [
            Release(live.call.call_id, "failed", live.usage, retry_on_another_worker=True)
            for live in self._calls.values()
            if live.worker_id is None
        ]

    def outputs(self, answer: EntryAnswers) -> list[Output]:
        """Return the outputs of an answer; none of one that was read before."""
        entry = EntryId.of(answer.entry)
        if entry <= self.answered:
            return []
        self.answered = entry
        outputs: list[Output] = []
        for result in answer.results:
            live = self._calls.get(result.record_id)
            if live is not None:
                outputs += self._outputs(live, result)
        for result in answer.results:
            if result.error is not None and not self._is_live(self._calls.get(result.record_id)):
                self._calls.pop(result.record_id, None)  # it was not accepted
        return outputs

    def _is_live(self, live: CallState | None) -> bool:
        return live is not None and self._table.get(live.call.call_id) is live

    def _accepted(self, live: CallState, call_id: str) -> Iterator[Output]:
        live.call.call_id = call_id
        self._table.accept(live, self._clock())
        yield JournalRow("accepted", live.record_id, {})
        yield CallChange(live, "accepted")

    def _outputs(self, live: CallState, result: CallResult) -> Iterator[Output]:
        record_id, call, now_s = live.record_id, live.call, self._clock()
        match result:
            case CallResult(grant=grant) if grant is not None:
                if not self._is_live(live):  # an answer was missed
                    yield from self._accepted(live, grant.call_id)
                call.expected_output_tokens = grant.expected_output_tokens
                self._table.grant(call.call_id, grant.worker_id, now_s)
                live.queue_s = grant.queue_s
                yield CallChange(live, "granted")
                yield CallAnswer(record_id, grant)
            case CallResult(rejection=rejection) if rejection is not None:
                yield CallAnswer(record_id, rejection)
            case CallResult(error=error) if error is not None:
                yield CallAnswer(record_id, error.of_call())
            case CallResult(attached=attached) if attached is not None:
                call.interaction_id, call.stage = attached.interaction_id, attached.stage
                call.run_rule = attached.run_rule
                yield CallMessage(record_id, attached)
            case CallResult(cancel=cancel) if cancel is not None:
                yield CallMessage(record_id, cancel)
            case CallResult(step="accepted"):
                yield from self._accepted(live, result.call_id)
            case CallResult(step="requeued") if self._is_live(live):
                self._table.wait_again(live, now_s)
                yield CallChange(live, "requeued")
            case CallResult(step="rejected" | "dropped" | "ended" as step):
                if self._is_live(live):
                    self._table.forget(live)
                del self._calls[record_id]
                yield CallChange(live, step, result.outcome, result.reason)
