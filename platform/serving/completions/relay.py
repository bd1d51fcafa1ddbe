"""Carry one call's answer: wait for its placement, read from the worker, and report to it.

A streamed answer is many chunks, and any other is one: the whole object.

Reports the outcome of each placement exactly once, in every case: the answer is complete, the worker
fails, the client leaves (this generator is closed or its task cancelled), or control stops the call.
Nothing is passed on before the first output, so that a client never sees the beginnings of two
answers. The relay decides nothing: after a failed attempt it asks the placement, which has the next
worker or the end (:mod:`fairserve.platform.serving.decision.placement`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerClient,
    WorkerRejectedError,
    WorkerStream,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.chunk_output import has_content
from fairserve.platform.base.errors import FairServeError
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.requests import CompletionCall
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.platform.serving.decision.placement import AttemptFailure, Placement, Used
from fairserve.platform.serving.decision.rejection import Rejection
from fairserve.platform.serving.decision.service import DecisionService
from fairserve.scheduling.events import CallOutcome


@dataclass(slots=True)
class _End:
    """The end of an attempt that is final."""

    outcome: CallOutcome = "cancelled"
    error: str | None = None
    """None: :attr:`Relay.why_left` knows."""


def _failed(error: Exception) -> _End:
    """Return the end by an error that is not the worker's own."""
    if isinstance(error, FairServeError):
        return _End("failed", error.message)
    return _End("failed", f"internal error: {type(error).__name__}")


OnContent = Callable[[str, Mapping[str, Any], Sequence[Mapping[str, Any]]], None]
"""Receives the record id, the request and the choices of the answer before a traced call ends."""


class Relay:
    """Carries one call. :meth:`chunks` may be read once."""

    def __init__(
        self,
        call: CompletionCall,
        decisions: DecisionService,
        workers: Mapping[str, WorkerClient],
        clock: Callable[[], float] = time.monotonic,
        *,
        on_content: OnContent | None = None,
    ) -> None:
        """``on_content`` receives prompts and answers of the calls whose spans are sampled."""
        self.call = call
        self.meter = self._new_meter()
        self.merger: Merger | None = None
        """The whole answer so far, of a call that is not streamed or may be continued."""
        self.why_left: Callable[[], str] = lambda: "client disconnected"
        """Returns the reason for which nobody reads the answer any more."""
        self.unwritten: Exception | None = None
        """Error of the writer for which its reader stops: the call has failed, and nobody has left."""
        self._placement: Placement | None = None
        self._decisions = decisions
        self._workers = workers
        self._on_content = on_content
        self._clock = clock
        self._submitted_s = clock()
        self.queue_s: float | None = None
        """Seconds from submission until the worker began, known with its first chunk; for an answer that
        is one object, as soon as its start is reported or assumed."""
        self._ttft_s: float | None = None
        self._whole_started = False
        """The worker has started, or is assumed to have started, a call that it does not stream."""
        self._opening: asyncio.Future[WorkerStream] | None = None
        self._stream: WorkerStream | None = None
        self._worker_lost = False

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, as far as they are known."""
        grant = None if self._placement is None else self._placement.grant
        return self._decisions.headers(self.call.checked, grant, self.queue_s)

    def facts(self) -> dict[str, object]:
        """Return the fields of the access line: model, worker, tokens, and times as far as known."""
        fields: dict[str, object] = {"model": self.call.checked.call.pool}
        if self._placement is not None:
            used = self.meter.total()
            fields |= {
                "worker": self._placement.grant.worker_id,
                "prompt_tokens": used.prompt_tokens,
                "cached_tokens": used.cached_tokens,
                "output_tokens": used.output_tokens,
            }
        for name, seconds in (("queue_s", self.queue_s), ("ttft_s", self._ttft_s)):
            if seconds is not None:
                fields[name] = round(seconds, 4)
        return fields

    async def chunks(self) -> AsyncGenerator[WorkerChunk]:
        """Yield the worker's chunks, the first with output; one of a call that is not streamed.

        Raises the FairServeError of a rejection, the worker's own 4xx, 503 where no worker could begin,
        502 where one broke off, or where workers failed because of the call.
        """
        answer = await self._placed()
        while True:
            self._begin_attempt()
            try:
                # Closed here and now: left to the collector, its report would come late.
                async with aclosing(self._attempt(answer)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except _AttemptFailedError as failed:
                rejection = await answer.failed(failed.failure, self._used())
                if rejection is not None:
                    raise rejection.error from failed
            else:
                return

    async def _placed(self) -> Placement:
        """Return the placement of the call. Raises the FairServeError of a rejection."""
        answer = await self._decisions.place(self.call.checked, self._hang_up)
        if isinstance(answer, Rejection):
            raise answer.error
        self._placement = answer
        return answer

    def _begin_attempt(self) -> None:
        self.queue_s = None
        self._worker_lost = self._whole_started = False
        self.meter = self._new_meter()
        if self.call.checked.conversation is not None or not self.call.stream or self._traced:
            self.merger = self.call.merger()

    @property
    def _traced(self) -> bool:
        """True if the content of the call is traced."""
        grant = None if self._placement is None else self._placement.grant
        return self._on_content is not None and grant is not None and grant.sampled

    def _new_meter(self) -> UsageMeter:
        checked = self.call.checked
        call = checked.call
        return UsageMeter(call.prompt_tokens, call.system_tokens, checked.usage_bounds)

    async def _attempt(self, placement: Placement) -> AsyncGenerator[WorkerChunk]:
        """Read from one worker, and report the end. Raises _AttemptFailedError without a report."""
        end: _End | None = _End()
        lease = asyncio.create_task(self._keep_lease(placement))
        try:
            async with aclosing(self._read(placement)) as chunks:
                async for chunk in chunks:
                    yield chunk
            end = _End("completed", "")
        except (WorkerRejectedError, WorkerUnavailableError, WorkerStreamError) as error:
            end = None
            failure = self._failure(error, placement.grant.worker_id)
            raise _AttemptFailedError(failure) from error
        except GeneratorExit:
            if self.unwritten is not None:
                end = _failed(self.unwritten)
            raise
        except Exception as error:
            end = _failed(error)
            raise
        finally:
            lease.cancel()
            self._hang_up()
            self._stream = None
            if end is not None:
                # Does not suspend: it is done even while this task is being cancelled.
                await self._report_end(placement, end)
        await placement.recorded()  # before the client learns that the answer is complete

    async def _report_end(self, placement: Placement, end: _End) -> None:
        conversation = self.call.checked.conversation
        if end.outcome == "completed" and conversation is not None and self.merger is not None:
            messages, requested_tools = self.merger.messages(), self.merger.requested_tools
        else:
            messages, requested_tools = [], False
        if self._traced and self._on_content is not None and self.merger is not None:
            choices = self.merger.answer("", "", {}).get("choices", ())
            self._on_content(self.call.checked.record_id, self.call.body, choices)
        await placement.end(
            end.outcome,
            self._used(),
            error=self.why_left() if end.error is None else end.error,
            messages=messages,
            requested_tools=requested_tools,
        )

    def _used(self) -> Used:
        """Return what an attempt that has ended used."""
        return Used(self.meter.total(), self._ttft_s, self._whole_started)

    def _failure(
        self,
        error: WorkerRejectedError | WorkerUnavailableError | WorkerStreamError,
        worker_id: str,
    ) -> AttemptFailure:
        if isinstance(error, WorkerRejectedError):
            rejected = self.call.rejected(error, worker_id)
            return AttemptFailure(str(error), "unknown", status=error.status, rejected=rejected)
        status = error.status if isinstance(error, WorkerUnavailableError) else None
        return AttemptFailure(
            str(error), error.cause, error.client_message, self._worker_lost, status
        )

    async def _read(self, placement: Placement) -> AsyncGenerator[WorkerChunk]:
        worker = self._workers.get(placement.grant.worker_id)
        if worker is None:
            raise WorkerUnavailableError("the worker has left", unreachable=True)
        if placement.stopped is not None:
            raise WorkerUnavailableError("stopped before it began")
        self._stream = await self._open(worker, placement)
        held: list[WorkerChunk] = []
        async for chunk in self._stream:
            self.meter.read(chunk.data)
            if self.call.continuous_usage:
                self.meter.show(chunk.data)
            if self.merger is not None:
                self.merger.add(chunk.data)
            if self.queue_s is None:
                self.queue_s = self._clock() - self._submitted_s
            self._report(placement)
            if self._ttft_s is None:
                held.append(chunk)
                if self.call.stream and any(map(has_content, chunk.data["choices"])):
                    self._ttft_s = self._clock() - self._submitted_s
                    for each in held:
                        yield each
            else:
                yield chunk
        if self._ttft_s is None:
            for each in held:
                yield each

    async def _open(self, worker: WorkerClient, placement: Placement) -> WorkerStream:
        """Return the worker's stream; hanging up ends the wait for it, too."""
        request = self.call.worker_request(placement.grant)
        request = replace(request, on_started=lambda: self._started(placement))
        self._opening = asyncio.ensure_future(worker.open(request))
        try:
            return await self._opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise WorkerUnavailableError("hung up before it answered") from None
        finally:
            self._opening = None

    def _started(self, placement: Placement) -> None:
        """Count the inputs of a call whose worker reports nothing more before its answer.

        A client that then disconnects has used them, and the output that control estimates.
        """
        self.meter.started = True
        self._whole_started = self.call.checked.call.max_output_tokens > 0
        self.queue_s = self._clock() - self._submitted_s
        self._progress(placement, started=True)

    def _hang_up(self) -> None:
        """Close the connection to the worker and wake the task that waits for it."""
        if self._opening is not None:
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()

    async def _keep_lease(self, placement: Placement) -> None:
        """Renew the lease of a call that waits inside its worker, while the worker lives."""
        while True:
            await asyncio.sleep(placement.grant.lease_s / 4)
            if placement.grant.worker_id not in self._workers:
                self._worker_lost = True
                self._hang_up()
                return
            if not self._progress(placement, started=self.meter.started):
                return

    def _report(self, placement: Placement) -> None:
        self._progress(placement, started=True)
        if placement.stopped is not None:
            raise WorkerStreamError(placement.stopped)

    def _progress(self, placement: Placement, *, started: bool) -> bool:
        return placement.progress(
            self.meter.usage(),
            started=started,
            cached_tokens_reported=self.meter.cached_tokens_reported,
        )


class _AttemptFailedError(Exception):
    """The worker failed; what follows is the placement's decision."""

    def __init__(self, failure: AttemptFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure
