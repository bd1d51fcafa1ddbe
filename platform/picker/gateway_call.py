"""A call that was placed for a gateway: its usage, its progress, and its end, exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.chunk_output import has_content
from fairserve.engine.wire.upstream_message import public_message, public_rejection
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.base.request_facts import add_facts
from fairserve.platform.fleet.member import Member
from fairserve.platform.picker.sent_call import SentCall
from fairserve.platform.picker.turn import LEFT
from fairserve.platform.serving.completions.endpoint import AnswerWriter
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.requests import CompletionCall
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.platform.serving.decision.placement import AttemptFailure, Placement, Used
from fairserve.platform.serving.decision.rejection import Rejection

logger = logging.getLogger(__name__)

AnyFailure = WorkerStreamError | WorkerUnavailableError | WorkerRejectedError


class GatewayCall:
    """One call from its grant to its end."""

    def __init__(
        self,
        call: CompletionCall,
        writer: AnswerWriter,
        placement: Placement,
        sent: SentCall,
        submitted_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``submitted_s`` is the time of the submission, by ``clock``."""
        self.call, self.writer = call, writer
        self.placement, self.sent = placement, sent
        core = call.checked.call
        bounds = call.checked.usage_bounds
        self.meter = UsageMeter(core.prompt_tokens, core.system_tokens, bounds)
        self.merger: Merger | None = None
        """The answer so far, if another call may continue it."""
        if call.stream and call.checked.conversation is not None:
            self.merger = call.merger()
        self.queue_s: float | None = None
        """Seconds from submission until the worker had begun to answer."""
        self.ended = False
        self._clock = clock
        self._submitted_s = submitted_s
        self._ttft_s: float | None = None
        self._begun = False
        self._whole_started = False
        """The worker has started a call that it does not stream, or is assumed to."""
        if not call.stream:  # a stream starts with its first event
            sent.on_started = self._started

    # --- progress ---------------------------------------------------------------------------------

    def was_sent(self) -> None:
        """Record that the gateway sends the call to its worker now."""
        self.sent.was_sent()

    def _started(self) -> None:
        """Count the inputs of a call whose worker reports nothing more before its answer.

        A client that then leaves has used them, and the output that control estimates.
        """
        self.meter.started = True
        self._whole_started = self.call.checked.call.max_output_tokens > 0
        self.queue_s = self._clock() - self._submitted_s
        self.renew()

    def answering(self) -> None:
        """Record that the head of an answer of status 200 has arrived."""
        if not self.call.stream:
            self.sent.answering()
        if self.queue_s is None:
            self.queue_s = self._clock() - self._submitted_s

    def read(self, chunk: dict[str, Any]) -> None:
        """Take a chunk of the answer, or the whole of it."""
        self._begin()
        self.meter.read(chunk)
        if self.call.continuous_usage:
            self.meter.show(chunk)
        if self.merger is not None:
            self.merger.add(chunk)
        if self.call.stream and self._ttft_s is None and any(map(has_content, _choices(chunk))):
            self._ttft_s = self._clock() - self._submitted_s

    def event(self, chunk: dict[str, Any]) -> bytes:
        """Return the client's event of a chunk; empty if it is not for the client."""
        return self.writer.event(WorkerChunk(chunk))

    def renew(self) -> None:
        """Report the usage so far, which renews the lease; a lease that has ended stops the call."""
        if not self.ended:
            usage = self.meter.usage()
            self.sent.decoded(usage.output_tokens)
            self.placement.progress(
                usage,
                started=self.meter.started,
                cached_tokens_reported=self.meter.cached_tokens_reported,
            )

    def served_by(self, member: Member) -> None:
        """Credit another worker, to which the gateway has sent the call."""
        if member.worker_id == self.placement.grant.worker_id:
            return
        self.placement.served_by(member.worker_id)
        self.sent = self.sent.moved_to(member)

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.sent.began()

    # --- the end ----------------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """True if control has stopped the call."""
        return self.placement.stopped is not None

    async def complete(self, merger: Merger | None = None) -> None:
        """Report a complete answer; returns once a crash cannot lose its row."""
        merger = self.merger if merger is None else merger
        messages, requested_tools = [], False
        if merger is not None and self.call.checked.conversation is not None:
            messages, requested_tools = merger.messages(), merger.requested_tools
        self._leave()
        await self.placement.end(
            "completed", self._used(), messages=messages, requested_tools=requested_tools
        )
        await self.placement.recorded()

    def complete_unread(self) -> Coroutine[Any, Any, None]:
        """End a call whose answer the gateway does not show; return what reports it.

        It counts as complete, with the output that was expected.
        """
        core = self.call.checked.call
        usage = self.meter.total()._replace(
            input_tokens=core.input_tokens,
            system_tokens=core.system_tokens,
            output_tokens=core.expected_output_tokens,
        )
        self._leave()
        return self.placement.end("completed", Used(usage))

    async def fail(self, error: AnyFailure, *, worker_lost: bool = False) -> Rejection:
        """Report a failure, and return the client's error. No other worker can be tried."""
        if isinstance(error, WorkerRejectedError):
            public = public_rejection(error)
            rejected = self.call.rejected(public, self.placement.grant.worker_id)
            failure = AttemptFailure(str(error), "unknown", status=error.status, rejected=rejected)
        else:
            status = error.status if isinstance(error, WorkerUnavailableError) else None
            failure = AttemptFailure(
                str(error), error.cause, public_message(error.client_message), worker_lost, status
            )
        self._leave()
        rejection = await self.placement.failed(failure, self._used(), last=True)
        return rejection or Rejection(UnavailableError("the worker failed"))

    async def stop(self) -> Rejection:
        """Report the end that control has ordered, and return the client's error."""
        return await self.fail(WorkerStreamError(self.placement.stopped or "stopped"))

    def leave(self) -> Coroutine[Any, Any, None]:
        """End the call, whose exchange ended before the answer was complete; return what reports it.

        The client has left, or the worker broke off: the gateway does not name the cause. So the worker
        is probed, and one that does not respond has failed.
        """
        used, member = self._used(), self.sent.member
        self._leave()
        return self._report_left(used, member)

    async def _report_left(self, used: Used, member: Member) -> None:
        if self.stopped:
            await self.placement.failed(AttemptFailure(LEFT, "unknown"), used, last=True)
            return
        wrong = await _wrong_with(member)
        if wrong:
            failure = AttemptFailure(wrong, "silent", worker_lost=True)
            await self.placement.failed(failure, used, last=True)
        else:
            await self.placement.end("cancelled", used, error=LEFT)

    def _leave(self) -> None:
        self.ended = True
        self.sent.end()
        usage = self.meter.total()
        add_facts(
            model=self.call.checked.call.pool,
            worker=self.placement.grant.worker_id,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )

    def _used(self) -> Used:
        return Used(self.meter.total(), self._ttft_s, self._whole_started)


async def _wrong_with(member: Member) -> str:
    """Return what is wrong with a worker; empty if it responds."""
    if not member.there:
        return "the worker was lost"
    try:
        return await member.http.probe()
    except Exception as error:
        logger.exception("a probe of worker %s failed", member.worker_id)
        return f"internal error: {type(error).__name__}"


def _choices(chunk: dict[str, Any]) -> list[Any]:
    choices = chunk.get("choices")
    return choices if isinstance(choices, list) else []
