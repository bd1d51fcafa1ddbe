"""The calls that Envoy carries now: their leases, their progress, and their end, exactly once.

A call is open from the decision that sends it to a worker until its end is reported. Envoy's access log
reports progress and end; the stream of the decision, which stays open as long as the answer, renews the
lease and is the way to stop the call. A stream that ends without a report in the log waits for one for
``END_WAIT_S``: then the log's file has the end, or the call has failed with its last progress.

The Python relay may take over a call whose worker failed before its answer began. It then reports
progress and end, and all later entries of the log are ignored.

Cost per open call: one timer each quarter of a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairserve.engine.wire.base import WorkerRejectedError, WorkerUnavailableError
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.control.messages import Client
from fairserve.platform.envoy.sent_call import SentCall
from fairserve.platform.envoy.turn import LEFT
from fairserve.platform.serving.completions.relay import BegunCall, call_facts
from fairserve.platform.serving.completions.service import PreparedCall
from fairserve.platform.serving.completions.usage import (
    NO_TOTALS,
    AnswerTotals,
    UsageMeter,
)
from fairserve.platform.serving.decision.placement import AttemptFailure, Placement, Used
from fairserve.platform.tenancy.auth import Principal

logger = logging.getLogger(__name__)

END_WAIT_S = 5.0
"""Seconds for which a call whose stream has ended waits for its end in the log."""
ATTEMPT_WAIT_S = 0.5
"""Seconds for which the relay waits for the cause of the failed attempt at Envoy."""
SETTLE_S = 0.25
"""Longest time in seconds for which a decision waits for ends of its client's earlier calls."""
MAX_OPEN_CALLS = 100_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request of Envoy to a worker that has failed."""

    record_id: str
    status: int = 0
    """Status of the worker's answer; 0: it sent none."""
    unreachable: bool = False
    """No connection was made."""
    retry_after: str = ""
    """``Retry-After`` of the worker's answer."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CallReport:
    """The state of an answer as Envoy's log reports it."""

    record_id: str
    ended: bool
    totals: AnswerTotals = NO_TOTALS
    started: bool = False
    """The worker has sent an event, or its whole answer."""
    complete: bool = False
    """The client was sent a whole answer."""
    client_left: bool = False
    first_output_at: float | None = None
    """Wall time of the first output, UTC epoch seconds."""
    requested_tools: bool = False
    error: str = ""
    """Message of an error that the worker sent after its header."""
    rejected: bool = False
    """True if that error rejects the request itself."""
    broken: str = ""
    """Reason for which the answer broke off, for operators."""
    status: int = 0
    ended_at: float | None = None
    """Wall time of the end, UTC epoch seconds, where the log's file has it."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The time of a call's submission by the monotonic clock, and by the wall clock."""

    monotonic_s: float = field(default_factory=time.monotonic)
    wall_s: float = field(default_factory=time.time)


class OpenCall:
    """A call that was placed. Changed by the decision's stream, the log and the relay."""

    def __init__(
        self,
        prepared: PreparedCall,
        placement: Placement,
        sent: SentCall | None,
        submission: Submission,
        calls: OpenCalls,
        principal: Principal,
    ) -> None:
        """``sent`` is the call at its worker; None: the relay carries it."""
        checked = prepared.call.checked
        self.prepared, self.placement = prepared, placement
        self.principal = principal
        self.record_id = checked.record_id
        self.owner: Client = (checked.call.tenant, checked.call.app, checked.call.user)
        self.queue_s: float | None = None
        """Seconds from submission until the worker began."""
        self.on_stop: Callable[[], None] = lambda: None
        """Stops the carrier of the call after control's order."""
        self.on_end: Callable[[OpenCall, int], None] = lambda call, status: None
        """Receives the call and the status of its answer once it has ended."""
        self.client_left = False
        """The client left before an answer began."""
        self._submission = submission
        self._calls = calls
        core = checked.call
        self._meter = UsageMeter(core.prompt_tokens, core.system_tokens, checked.usage_bounds)
        self._ttft_s: float | None = None
        self._carrier: Literal["envoy", "relay", "none"] = "envoy"
        self._sent = sent
        self._attempt: asyncio.Future[Attempt] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if sent is not None:
            sent.on_started = self.started
            self._attempt = self._loop.create_future()
        self._renew_later()

    @property
    def envoys(self) -> bool:
        """True while Envoy carries the call."""
        return self._carrier == "envoy"

    def facts(self) -> dict[str, object]:
        """Return the fields of the call's access line."""
        used = self._meter.total()
        return call_facts(self.prepared.call, self.placement, used, self.queue_s, self._ttft_s)

    # --- progress ---------------------------------------------------------------------------------

    def sent(self) -> None:
        """Handle that Envoy sends the call now."""
        if self._sent is not None:
            self._sent.was_sent()

    def started(self) -> None:
        """Report that the worker has started the call."""
        if self._meter.started or not self.envoys:
            return
        self.queue_s = time.monotonic() - self._submission.monotonic_s
        self._meter.started = True
        self._report()

    def answering(self, *, length_known: bool) -> None:
        """Note that the header of the worker's answer has arrived, which starts a whole one.

        ``length_known``: the header has the answer's length, so the worker has computed it.
        """
        if self.queue_s is None:
            self.queue_s = time.monotonic() - self._submission.monotonic_s
        if self._sent is not None:
            self._sent.answering()
            if length_known:
                self._sent.answered()

    def progress(self, report: CallReport) -> None:
        """Take the totals of an answer in progress."""
        if self.envoys:
            if report.started and not self._meter.started and self._sent is not None:
                self._sent.began()
            self._read(report)
            self._report()

    def _used(self) -> Used:
        call = self.prepared.call
        unseen = not call.stream and call.checked.call.max_output_tokens > 0
        whole_started = unseen and self._meter.started
        return Used(self._meter.total(), self._ttft_s, whole_started)

    def _read(self, report: CallReport) -> None:
        if report.started:
            self._meter.read_totals(report.totals)
            if self._sent is not None:
                self._sent.decoded(self._meter.usage().output_tokens)
        if report.first_output_at is not None and self.prepared.call.stream:
            self._ttft_s = max(0.0, report.first_output_at - self._submission.wall_s)

    def _report(self) -> None:
        renewed = self.placement.progress(
            self._meter.usage(),
            started=self._meter.started,
            cached_tokens_reported=self._meter.cached_tokens_reported,
            queue_s=self.queue_s,
        )
        if not renewed:
            self.on_stop()

    def _renew_later(self) -> None:
        self._timer = self._loop.call_later(self.placement.grant.lease_s / 4, self._renew)

    def _renew(self) -> None:
        self._renew_later()
        self._report()

    # --- the relay takes over ---------------------------------------------------------------------

    def attempt_ended(self, attempt: Attempt) -> None:
        """Note how the request to the worker ended."""
        if self._attempt is not None and not self._attempt.done():
            self._attempt.set_result(attempt)

    async def take_over(self, *, failed: bool) -> BegunCall | None:
        """Return the call for the relay, which reports its end; None: it has ended, or was taken.

        ``failed``: Envoy has sent it to its worker before. Waits for the cause.
        """
        if not self.envoys:
            return None
        self._carrier = "relay"
        self._stop_timer()
        failure = await self._failure() if failed and self._attempt is not None else None
        self._leave()

        def hang_up_with(hang_up: Callable[[], None]) -> None:
            self.on_stop = hang_up

        return BegunCall(
            self.placement,
            self._submission.monotonic_s,
            hang_up_with,
            failure,
            self._used(),
        )

    async def _failure(self) -> AttemptFailure | None:
        """Return why the attempt at Envoy failed; None: the worker rejected the call itself.

        The worker's reason for a rejection is in a body that Envoy has dropped: the relay asks again.
        """
        assert self._attempt is not None
        assert self._sent is not None
        await asyncio.wait({self._attempt}, timeout=ATTEMPT_WAIT_S)
        attempt = self._attempt.result() if self._attempt.done() else Attempt(self.record_id)
        error = _error_of(attempt, self._sent)
        if isinstance(error, WorkerRejectedError):
            return None
        self._sent.failed(error)
        return AttemptFailure(
            str(error), error.cause, error.client_message, status=attempt.status or None
        )

    # --- the end ----------------------------------------------------------------------------------

    async def end(self, report: CallReport) -> None:
        """Report the end of the call as the log has it. Ignored if the relay does."""
        if not self.envoys:
            return
        if report.started and not self._meter.started:
            # It was over before its start was seen: the header has the best time of it.
            self._meter.started = True
            self._report()
        self._read(report)
        self._close()
        used = self._used()
        if report.complete:  # also if control stopped it before its end was reported
            await self.placement.end("completed", used, requested_tools=report.requested_tools)
        elif self.placement.stopped is not None:
            await self.placement.failed(AttemptFailure(self.placement.stopped, "unknown"), used)
        elif report.client_left:
            await self.placement.end("cancelled", used, error=LEFT)
        elif report.rejected:
            rejected = WorkerRejectedError(
                400, {"message": report.error.removeprefix("it reported: ")}
            )
            failure = AttemptFailure(str(rejected), "unknown", rejected=rejected)
            await self.placement.failed(failure, used)
        elif report.error:
            await self.placement.broke_off(AttemptFailure(report.error, "failed"), used)
        else:
            await self.placement.broke_off(AttemptFailure(report.broken, "silent"), used)
        self.on_end(self, report.status)

    async def withdraw(self) -> None:
        """Report that the client left before its call was sent to a worker."""
        if self.envoys:
            self._close()
            await self.placement.end("cancelled", Used(), error=LEFT)
            self.on_end(self, 0)

    def stream_ended(self, *, client_left: bool) -> None:
        """Wait for the report of the end, which may have arrived before.

        ``client_left``: before an answer began. If Envoy had not sent the call, its log has no entry.
        """
        if self.envoys:
            self.client_left = client_left
            if self._sent is not None:
                self._sent.answered()
            self._stop_timer()
            self._timer = self._loop.call_later(END_WAIT_S, self._calls.overdue, self)
            self._calls.is_ending(self)

    def forget(self) -> None:
        """Stop all timers: the server stops, and control ends the call."""
        self._close()

    def _close(self) -> None:
        self._carrier = "none"
        self._stop_timer()
        self._leave()

    def _leave(self) -> None:
        if self._sent is not None:
            self._sent.end()
        self._calls.remove(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


ReadEnds = Callable[[Collection[str]], Mapping[str, CallReport]]
"""Returns the ends of calls that the log's file has, by record id. Blocks."""


class OpenCalls:
    """The open calls of one server by record id, at most ``MAX_OPEN_CALLS``. One event loop."""

    def __init__(self, read_ends: ReadEnds) -> None:
        self._read_ends = read_ends
        self._calls: dict[str, OpenCall] = {}
        self._overdue: dict[str, OpenCall] = {}
        self._unreported: dict[Client, dict[OpenCall, asyncio.Event]] = {}
        """Calls whose answers have ended without a report in the log yet, by client."""
        self._ending: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Number of open calls that Envoy carries."""
        return len(self._calls)

    def get(self, record_id: str) -> OpenCall | None:
        """Return an open call that Envoy carries."""
        return self._calls.get(record_id)

    def require_capacity(self) -> None:
        """Raise UnavailableError if there are too many open calls for one more."""
        if len(self._calls) >= MAX_OPEN_CALLS:
            raise UnavailableError(
                f"the server has {len(self._calls)} calls in progress; allowed: {MAX_OPEN_CALLS}",
                code="queue_full",
                headers={"Retry-After": "5"},
            )

    def open(
        self,
        prepared: PreparedCall,
        placement: Placement,
        sent: SentCall | None,
        submission: Submission,
        principal: Principal,
    ) -> OpenCall:
        """Add a call that was placed. ``principal`` is the owner of the request's key."""
        call = OpenCall(prepared, placement, sent, submission, self, principal)
        self._calls[call.record_id] = call
        return call

    def is_ending(self, call: OpenCall) -> None:
        """Note that the answer of a call has ended, and that its end is to be reported."""
        self._unreported.setdefault(call.owner, {})[call] = asyncio.Event()

    async def settled(self, owner: Client) -> bool:
        """Wait until the ended answers of a client are reported; return whether there were any.

        A client sends its next request as soon as it has an answer, some milliseconds before the log
        reports its end: the run and the limits would be those of before.
        """
        ends = list(self._unreported.get(owner, {}).values())
        if not ends:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                for end in ends:
                    await end.wait()
        return True

    def remove(self, call: OpenCall) -> None:
        """Remove a call that has ended, or that the relay carries."""
        unreported = self._unreported.get(call.owner, {})
        if (end := unreported.pop(call, None)) is not None:
            end.set()
            if not unreported:
                del self._unreported[call.owner]
        if self._calls.get(call.record_id) is call:
            del self._calls[call.record_id]

    def overdue(self, call: OpenCall) -> None:
        """End a call whose end was not reported: as the log's file has it, else as failed."""
        self._overdue[call.record_id] = call
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_overdue(), name="ends of calls")

    async def _end_overdue(self) -> None:
        try:
            while self._overdue:
                calls, self._overdue = self._overdue, {}
                try:
                    found = await asyncio.to_thread(self._read_ends, calls.keys())
                except OSError as error:
                    logger.warning("the access log cannot be read: %s", error)
                    found = {}
                for record_id, call in calls.items():
                    unknown = CallReport(
                        record_id,
                        ended=True,
                        client_left=call.client_left,
                        broken="its end was not reported",
                    )
                    await call.end(found.get(record_id, unknown))
        finally:
            self._ending = None

    async def close(self) -> None:
        """Forget all calls: control ends them when the server stops."""
        for call in list(self._calls.values()):
            call.forget()
        if self._ending is not None:
            await asyncio.gather(self._ending, return_exceptions=True)


def _error_of(attempt: Attempt, sent: SentCall) -> WorkerUnavailableError | WorkerRejectedError:
    if attempt.unreachable:
        text = f"no connection: {attempt.reason}"
        return WorkerUnavailableError(text, unreachable=True)
    if attempt.status not in (0, 200):
        return sent.error_of(attempt.status, attempt.retry_after)
    text = attempt.reason or "its connection broke before it answered"
    return WorkerUnavailableError(text, cause="silent")
