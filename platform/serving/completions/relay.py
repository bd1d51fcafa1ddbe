"""Carry one call: have it placed, send it to its worker, and report to control.

The relay has the connections and decides nothing: what happens goes into the
:class:`~fairserve.platform.serving.completions.running_call.RunningCall`, and what it returns is done. A
worker's bytes are handled in the callback in which they arrive, and what the client gets of them is
written there. The task of :meth:`Relay.carry` waits only for control and for the end of an attempt.

All calls are carried so: those of clients, those that the server makes itself, and those whose bytes a
gateway carries, which is then the ``transport``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairserve.engine.wire.base import (
    SentCall,
    Transport,
    WorkerChunk,
    WorkerClient,
    WorkerError,
    WorkerRejectedError,
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.control.messages import Cancel, Grant
from fairserve.platform.serving.completions.answer import AnswerReader
from fairserve.platform.serving.completions.running_call import LEFT, REPORT_S, RunningCall
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.platform.serving.rejected_calls import NOT_SUBMITTED, retry_after_s

logger = logging.getLogger(__name__)

LEAST_PAUSE_S = 0.1
"""Shortest pause before a call is submitted again, in seconds."""
MAX_LOGGED_CHARS = 300
"""Characters of a worker's error in the log: it may repeat parts of the prompt."""

OnContent = Callable[[str, Mapping[str, Any], Sequence[Mapping[str, Any]]], None]
"""Receives the record id, the request and the choices of the answer before a traced call ends."""


class Nobody:
    """The reader of a call of which only the whole answer is wanted."""

    lost = ""
    is_full = False
    on_space: Callable[[], None] = staticmethod(lambda: None)

    def write(self, body: bytes) -> None:
        """Drop it."""


class Relay:
    """Carries one call, once."""

    def __init__(
        self,
        call: RunningCall,
        decisions: DecisionService,
        worker_of: Callable[[str], WorkerClient | None],
        reader: AnswerReader | None = None,
        *,
        transport: Transport | None = None,
        on_content: OnContent | None = None,
        max_wait_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``worker_of`` returns a worker by its id, or None while it cannot be reached.

        ``on_content`` receives prompts and answers of the calls whose spans are sampled. While control
        accepts nothing new, the call is submitted again for ``max_wait_s`` seconds.
        """
        self.call = call
        self.reader: AnswerReader = Nobody() if reader is None else reader
        self.lost = False
        """The worker was lost while it had the call."""
        self.is_last = False
        """No other worker can get the call after this attempt."""
        self.why_left = LEFT
        self._control = decisions.control
        self._decisions, self._worker_of = decisions, worker_of
        # Some clients send the next call when they see the finish_reason, and not at the stream's end.
        call.holds_end = decisions.control.shared
        self._transport = transport
        self._on_content = on_content
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] | None = None
        """The end of the current attempt."""
        self._sent: SentCall | None = None
        self._lease_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, as far as they are known."""
        call = self.call
        return self._decisions.headers(call.checked, call.last_grant, call.queue_s)

    async def carry(self) -> None:
        """Carry the call to the end of its answer, whose row is then safe from a crash.

        Raises the FairServeError of a rejection, the worker's own 4xx, 503 where no worker could begin,
        502 where one broke off, or where workers failed because of the call. Cancelled, it ends the
        call.
        """
        call = self.call
        try:
            request = await self._placed()
            while (error := await self._attempt(request)) is not None:
                request = await self._after(error)
            rest, release = call.completed()
            if rest:
                self.reader.write(rest)
        except BaseException as error:
            if call.state not in ("waiting", "ended"):
                self._trace()
                cancelled = isinstance(error, asyncio.CancelledError)
                ending = call.left(self.reader.lost or self.why_left) if cancelled else None
                # It is done before it suspends, even while this task is being cancelled.
                await self._control.release(ending or call.broke(error))
            raise
        self._trace()
        await self._control.release(release)
        await self._control.recorded()
        if end := call.recorded():
            self.reader.write(end)

    async def _placed(self) -> WorkerRequest:
        until_s = self._clock() + self._max_wait_s
        while True:
            try:
                return self._granted(await self._decisions.place(self.call.checked, self._stop))
            except FairServeError as error:
                pause_s = max(LEAST_PAUSE_S, retry_after_s(error))
                if error.code not in NOT_SUBMITTED or self._clock() + pause_s > until_s:
                    self.call.rejected(error)
                    raise
            await asyncio.sleep(pause_s)

    def _granted(self, grant: Grant) -> WorkerRequest:
        self.call.keeps_answer = self._on_content is not None and grant.sampled
        return self.call.granted(grant)

    async def _after(self, error: WorkerError) -> WorkerRequest:
        """Report a failed attempt; return the request for the next worker.

        Raises the client's error if there is none.
        """
        call = self.call
        self._log(error)
        release = call.failed(error, lost=self.lost, last=self.is_last)
        if not release.retry_on_another_worker:
            await self._control.release(release)
            assert call.error is not None, "a call that has failed has an error"
            raise call.error from error
        try:
            grant = await self._control.release(release)
        except FairServeError as rejected:
            call.rejected(rejected)
            raise
        if grant is None:
            call.rejected(call.stopped_error())
            raise call.stopped_error()
        return self._granted(grant)

    def _log(self, error: WorkerError) -> None:
        if self.call.stop_order is not None or isinstance(error, WorkerRejectedError):
            return
        assert isinstance(error, WorkerStreamError | WorkerUnavailableError), error
        worker_id = self.call.grant.worker_id
        fields = {
            "call_id": self.call.checked.record_id,
            "worker": worker_id,
            "status": error.status if isinstance(error, WorkerUnavailableError) else None,
            "cause": "lost" if self.lost else error.cause,
            "attempt": self.call.attempts,
        }
        text = str(error)[:MAX_LOGGED_CHARS]
        logger.warning("worker %s failed a call: %s", worker_id, text, extra={"fields": fields})

    def _trace(self) -> None:
        """Pass on the content of a traced call."""
        call = self.call
        if self._on_content is not None and call.keeps_answer and call.merger is not None:
            choices = call.merger.answer("", "", {}).get("choices", ())
            self._on_content(call.checked.record_id, call.body, choices)

    # --- one attempt ------------------------------------------------------------------------------

    async def _attempt(self, request: WorkerRequest) -> WorkerError | None:
        """Have one worker answer; return its failure. Raises the errors of whoever writes the answer."""
        call = self.call
        grant = call.grant
        self.lost = call.may_have_begun = False
        worker = self._worker_of(grant.worker_id)
        if worker is None:
            return WorkerUnavailableError("the worker has left", unreachable=True)
        if call.stop_order is not None:
            return WorkerUnavailableError("stopped before it began")
        self._over = self._loop.create_future()
        self._lease_timer = self._loop.call_later(grant.lease_s / 4, self._renew)
        try:
            self._sent = worker.send(request, self, self._transport)
            self.reader.on_space = self._sent.resume
            await self._over
        except WorkerError as error:
            return error
        finally:
            call.may_have_begun = self._sent is not None and self._sent.may_have_begun
            self.hang_up()
            if self._over.done() and not self._over.cancelled():
                self._over.exception()  # it is taken, though this task may be cancelled
        return None

    def hang_up(self) -> None:
        """Close the connection to the worker. May be repeated."""
        for timer in (self._lease_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._lease_timer = self._report_timer = None
        if self._sent is not None:
            self._sent.close()
            self._sent = None

    def fail(self, error: Exception) -> None:
        """End the attempt."""
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)
        if self._sent is not None:
            self._sent.close()

    @property
    def has_ended(self) -> bool:
        """True if the attempt is over, whose end is being reported."""
        return self._over is not None and self._over.done()

    def moved(self, worker_id: str, worker: WorkerClient, request: WorkerRequest) -> None:
        """Take another worker for the call, to which the transport has sent it."""
        if worker_id == self.call.grant.worker_id or self.has_ended:
            return
        if self._control.moved(self.call.grant.call_id, worker_id):
            self.call.moved(worker_id)
        if self._sent is not None:
            self._sent.close()
        self._sent = worker.send(request, self, self._transport)

    async def complete_unread(self) -> None:
        """End a call whose answer the transport does not show."""
        release = self.call.unread()
        self.hang_up()
        await self._control.release(release)

    # --- AnswerReceiver ---------------------------------------------------------------------------

    def started(self) -> None:
        """Report the start of a call whose answer is one object."""
        self.call.started(self._clock())
        self._report()

    def received(self, chunks: list[WorkerChunk]) -> None:
        """Write what has arrived, and report the progress, now or soon."""
        call = self.call
        try:
            written = call.received(chunks, self._clock())
            if call.report_due:
                self._report()
            elif self._report_timer is None:
                self._report_timer = self._loop.call_later(REPORT_S, self._report_late)
            if call.stop_order is None and written:
                self.reader.write(written)
        except Exception as error:
            self.fail(error)
            return
        if call.problem is not None:
            self.fail(call.problem)
        elif self.reader.is_full and self._sent is not None:
            self._sent.pause()

    def ended(self) -> None:
        """End the attempt."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def failed(self, error: WorkerError) -> None:
        """End the attempt with its failure."""
        self.fail(error)

    # --- progress ---------------------------------------------------------------------------------

    def _report(self) -> None:
        """Report the usage, which renews the lease; a call without one is stopped."""
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        call = self.call
        if not self._control.progress(call.report()):
            call.lease_ended()
        if call.stop_order is not None:
            self.fail(WorkerStreamError(call.stop_order.reason))

    def _report_late(self) -> None:
        self._report_timer = None
        self._report()

    def _renew(self) -> None:
        """Renew the lease of a call that waits inside its worker, while the worker lives."""
        grant = self.call.grant
        self._lease_timer = self._loop.call_later(grant.lease_s / 4, self._renew)
        if self._worker_of(grant.worker_id) is None:
            self.lost = True
            self.fail(WorkerUnavailableError("the worker was lost", cause="silent"))
            return
        self._report()

    def _stop(self, cancel: Cancel) -> None:
        """Take control's order to stop the call, which may arrive from the submission on."""
        self.call.stop_order = cancel
        self.fail(WorkerUnavailableError("hung up before it answered"))
