"""One call from its submission to its last chunk: waits for the grant, streams from the worker.

Control is told exactly once how each grant ended, whatever ends it: the answer is complete, the
worker fails, the client goes away (this generator is closed or its task cancelled), or control stops
the call. A worker that fails before the first token costs nothing but time: the call goes back to
the queue and another worker gets it, ``MAX_ATTEMPTS`` in all. Until the first token nothing is
passed on, so that a client never sees the beginnings of two answers.

A call that failed ``MAX_FAILURES`` times while a worker had it is not retried, because it may be what
makes workers fail; where a worker said why, its client gets that as 502.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
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
from fairserve.engine.wire.upstream_message import public_message
from fairserve.interactions.call import TokenUsage
from fairserve.platform.base.errors import (
    FairServeError,
    UnavailableError,
    UpstreamError,
    WorkerFailedError,
)
from fairserve.platform.control.messages import Cancel, Grant, Progress, RefuseCall, Release
from fairserve.platform.control.port import ControlPort
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.prepared import PreparedCall
from fairserve.platform.serving.completions.refusals import PassedOnError, refusal
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.scheduling.events import CallOutcome

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_FAILURES = 2
"""Attempts of a call that may have failed because of the call itself."""


@dataclass(slots=True)
class _End:
    """How an attempt ended, as control is told."""

    outcome: CallOutcome = "cancelled"
    error: str | None = None
    """None: why the client left."""
    delivered: bool = False


class Relay:
    """One prepared call under way. :meth:`chunks` may be read once."""

    def __init__(
        self,
        prepared: PreparedCall,
        control: ControlPort,
        workers: Mapping[str, WorkerClient],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prepared = prepared
        self.grant: Grant | None = None
        self.delivered = False
        """Set by the reader once the client was sent something of the answer."""
        self.meter = UsageMeter(prepared.call.prompt_tokens, prepared.call.system_tokens)
        self.merger: Merger | None = None
        """The whole answer so far, of a call that is not streamed or may be continued."""
        self.why_left: Callable[[], str] = lambda: "client disconnected"
        """Says why nobody reads the answer any more, when nobody does."""
        self._control = control
        self._workers = workers
        self._clock = clock
        self._submitted_s = clock()
        self.queue_s: float | None = None
        """From submission until the worker began, known with its first chunk."""
        self._ttft_s: float | None = None
        self._opening: asyncio.Future[WorkerStream] | None = None
        self._stream: WorkerStream | None = None
        self._stopped: Cancel | None = None
        self._worker_lost = False
        self._failures = 0
        """Attempts that failed while a worker had the call."""
        self._upstream_error = ""
        """Message of the last worker that answered the call with an error."""

    async def chunks(self) -> AsyncGenerator[WorkerChunk]:
        """The worker's chunks; the first one carries output.

        Raises a FairServeError: the refusal, the worker's own 4xx, 503 where no worker could begin,
        502 where one broke off, or where workers failed because of the call.
        """
        answer = await self._control.submit(self.prepared.submit(), self._stop)
        if isinstance(answer, RefuseCall):
            raise refusal(answer)
        grant: Grant | None = answer
        for attempt in range(1, MAX_ATTEMPTS + 1):
            self.grant = grant
            assert grant is not None
            self.queue_s = None
            self._worker_lost = False
            self.meter = UsageMeter(
                self.prepared.call.prompt_tokens, self.prepared.call.system_tokens
            )
            if self.prepared.conversation is not None or not self.prepared.stream:
                self.merger = Merger()
            try:
                # Closed here and now: left to the collector, its release would come late.
                async with aclosing(self._attempt(grant, last=attempt == MAX_ATTEMPTS)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except _TryAgainError as failure:
                release = Release(
                    grant.call_id,
                    "failed",
                    TokenUsage(),
                    error=f"{grant.worker_id}: {failure}",
                    retry_on_another_worker=True,
                )
                grant = await self._control.release(release)
                if grant is None:
                    raise self._stop_error() from failure
            else:
                return

    async def _attempt(self, grant: Grant, *, last: bool) -> AsyncGenerator[WorkerChunk]:
        """Stream from one worker, and release its grant unless the call is to be tried again."""
        end = _End()
        again = False
        sign_of_life = asyncio.create_task(self._keep_lease(grant))
        try:
            async with aclosing(self._read(grant)) as chunks:
                async for chunk in chunks:
                    yield chunk
            end = _End("completed", "", delivered=True)
        except WorkerRejectedError as rejected:
            end = _End("failed", str(rejected))
            raise PassedOnError(rejected) from rejected
        except (WorkerUnavailableError, WorkerStreamError) as failure:
            if self._stopped is not None:
                end = _End(self._stopped.outcome, self._stopped.reason)
                raise self._stop_error() from failure
            logger.info("an attempt at worker %s failed: %s", grant.worker_id, failure)
            text = public_message(str(failure))
            end = _End("failed", f"{grant.worker_id}: {text}")
            if self._ttft_s is None:
                self._count(failure)
                if not last and self._failures < MAX_FAILURES:
                    again = True
                    raise _TryAgainError(text) from failure
                raise self._no_answer(failure) from failure
            raise WorkerFailedError("the worker failed while it was answering") from failure
        except FairServeError as error:
            end = _End("failed", error.message)
            raise
        except Exception as error:
            end = _End("failed", f"internal error: {type(error).__name__}")
            raise
        finally:
            sign_of_life.cancel()
            self._hang_up()
            self._stream = None
            if not again:
                # Does not suspend: it is done even while this task is being cancelled.
                await self._control.release(
                    Release(
                        grant.call_id,
                        end.outcome,
                        self.meter.usage(),
                        ttft_s=self._ttft_s,
                        error=self.why_left() if end.error is None else end.error,
                        delivered=end.delivered or self.delivered,
                        **self._said(end.outcome),
                    )
                )
        await self._control.recorded()  # before its client hears that it is complete

    def _count(self, failure: WorkerUnavailableError | WorkerStreamError) -> None:
        """Remember a failed attempt. One that ended because its worker was lost is not the call's."""
        if failure.cause == "busy" or self._worker_lost:
            return
        self._failures += failure.cause != "worker"
        if failure.cause == "failed":
            self._upstream_error = failure.client_message or "the worker gave no reason"

    def _no_answer(self, failure: WorkerUnavailableError | WorkerStreamError) -> FairServeError:
        """Return the error of a call that is not retried any more."""
        if self._upstream_error and self._failures >= MAX_FAILURES:
            return UpstreamError(
                f"the call failed at {MAX_FAILURES} attempts and is not retried;"
                f" the worker answered: {self._upstream_error}",
                headers={"x-should-retry": "false"},
            )
        text = "no worker could begin with the call"
        return UnavailableError(
            f"{text}; the last one answered: {failure.client_message}"
            if failure.client_message
            else text,
            headers={"Retry-After": "5"},
        )

    def _said(self, outcome: CallOutcome) -> dict[str, Any]:
        """What of a complete answer tells whether another call continues it."""
        conversation = self.prepared.conversation
        if outcome != "completed" or conversation is None or self.merger is None:
            return {}
        keys = conversation.answered(self.merger.messages())
        return {"continuation_keys": keys, "requested_tools": self.merger.requested_tools}

    async def _read(self, grant: Grant) -> AsyncGenerator[WorkerChunk]:
        worker = self._workers.get(grant.worker_id)
        if worker is None:
            raise WorkerUnavailableError("the worker has left", unreachable=True)
        if self._stopped is not None:
            raise WorkerUnavailableError("stopped before it began")
        self._stream = await self._open(worker, grant)
        held: list[WorkerChunk] = []
        async for chunk in self._stream:
            self.meter.read(chunk.data)
            if self.merger is not None:
                self.merger.add(chunk.data)
            if self.queue_s is None:
                self.queue_s = self._clock() - self._submitted_s
            self._report(grant)
            if self._ttft_s is None:
                held.append(chunk)
                if any(map(has_content, chunk.data.get("choices") or ())):
                    self._ttft_s = self._clock() - self._submitted_s
                    for each in held:
                        yield each
            else:
                yield chunk
        self.meter.ended()
        if self._ttft_s is None:
            for each in held:
                yield each

    async def _open(self, worker: WorkerClient, grant: Grant) -> WorkerStream:
        """The worker's stream; hanging up ends the wait for it, too."""
        self._opening = asyncio.ensure_future(worker.open(self.prepared.worker_request(grant)))
        try:
            return await self._opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise WorkerUnavailableError("hung up before it answered") from None
        finally:
            self._opening = None

    def _hang_up(self) -> None:
        """Close the connection to the worker; whoever waits for it is woken."""
        if self._opening is not None:
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()

    async def _keep_lease(self, grant: Grant) -> None:
        """While the worker lives, a call that waits inside it keeps its lease."""
        while True:
            await asyncio.sleep(grant.lease_s / 4)
            if grant.worker_id not in self._workers:
                self._worker_lost = True
                self._hang_up()
                return
            progress = Progress(
                grant.call_id,
                self.meter.started,
                self.meter.usage(),
                self.meter.cached_tokens_reported,
            )
            if not self._control.progress(progress):
                return

    def _report(self, grant: Grant) -> None:
        progress = Progress(
            grant.call_id, True, self.meter.usage(), self.meter.cached_tokens_reported
        )
        if not self._control.progress(progress) and self._stopped is None:
            self._stopped = Cancel(grant.call_id, "failed", "its lease has ended")
        if self._stopped is not None:
            raise WorkerStreamError(self._stopped.reason)

    def _stop(self, cancel: Cancel) -> None:
        """Control stops the call: closing the stream wakes whoever reads it."""
        self._stopped = cancel
        self._hang_up()

    def _stop_error(self) -> FairServeError:
        reason = self._stopped.reason if self._stopped is not None else "the call was stopped"
        return UnavailableError(reason, code="call_stopped", headers={"Retry-After": "5"})


class _TryAgainError(Exception):
    """The worker failed before the first token."""
