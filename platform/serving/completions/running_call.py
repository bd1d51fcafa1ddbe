"""One call from its check to its end, without I/O: what happens goes in, what to do comes out.

A driver has the connections: the relay, which sends the call itself, or a gateway's exchange, which a
proxy drives. It passes on what happens and does what the call returns: a message for control, or
bytes for the client. The steps of a call are :data:`TRANSITIONS`; nothing else changes its state.

Nothing is written for the client before the first output, so that it never sees the beginnings of two
answers. A worker that fails before the first output of a streamed call, or before the start of any
other, costs only time: the call is queued again and another worker gets it, ``MAX_ATTEMPTS`` in all. A
call that failed ``MAX_FAILURES`` times while a worker had it is not retried, because it may be what
makes workers fail; where a worker gave a reason, the client gets it as 502. Nor is one that is not
streamed and failed after its start, because it has used the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from fairserve.engine.wire.base import (
    FailureCause,
    WorkerChunk,
    WorkerError,
    WorkerRejectedError,
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.upstream_message import public_message
from fairserve.interactions.call import NO_USAGE, TokenUsage
from fairserve.platform.base.errors import (
    FairServeError,
    UnavailableError,
    UpstreamError,
    WorkerFailedError,
)
from fairserve.platform.control.messages import Cancel, Grant, Progress, Release
from fairserve.platform.serving.completions.endpoint import AnswerWriter, RelayedRequest
from fairserve.platform.serving.completions.merge import Merger
from fairserve.platform.serving.completions.usage import UsageMeter
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.rejection import RejectedByWorkerError
from fairserve.scheduling.events import CallOutcome

State = Literal["waiting", "sent", "started", "answering", "complete", "ended"]
Step = Literal["granted", "started", "output", "completed", "returned", "ended"]

TRANSITIONS: Mapping[State, Mapping[Step, State]] = MappingProxyType(
    {
        "waiting": {"granted": "sent", "ended": "ended"},
        "sent": {"started": "started", "returned": "waiting", "ended": "ended"},
        "started": {
            "output": "answering",
            "completed": "complete",
            "returned": "waiting",
            "ended": "ended",
        },
        "answering": {"completed": "complete", "ended": "ended"},
        "complete": {"ended": "ended"},
        "ended": {},
    }
)
"""The next state by state and step.

``waiting``: for a worker. ``sent``: to the granted worker, which may queue it. ``started``: its worker
works on it, and the client has nothing. ``answering``: the client has got output, so that no other
worker can answer. ``complete``: the client gets the end once a crash cannot lose the row. The step
``returned``: the worker failed, and another one is asked for.
"""

MAX_ATTEMPTS = 3
MAX_FAILURES = 2
"""Attempts of a call that may have failed because of the call itself."""
LEFT = "client disconnected"
REPORT_S = 0.05
"""Seconds within which new output is reported to control; a start and the first output at once."""
REPORT_TOKENS = 64
"""Output tokens that are reported at once, too."""

_KINDS: Mapping[FailureCause, str] = MappingProxyType(
    {
        "worker": "it serves no calls",
        "busy": "it accepts no calls now",
        "silent": "its connection broke, or it did not answer in time",
        "unknown": "it reported an error",
        "failed": "it reported an error",
    }
)


class RunningCall:
    """One call. ``now_s`` is the driver's monotonic time in seconds, the same clock in every step."""

    def __init__(
        self,
        request: RelayedRequest,
        checked: CheckedCall,
        writer: AnswerWriter | None,
        now_s: float,
    ) -> None:
        """Begin to wait for a worker. Without a ``writer`` nothing is written: see :attr:`merger`."""
        self.request = request
        self.checked = checked
        self.streams = request.stream
        """The client gets the output as it arrives."""
        self.body = request.worker_body(checked)
        """The request, of which its worker gets what it honours."""
        self._shows_usage = request.continuous_usage
        self.writer = writer
        self.state: State = "waiting"
        self.keeps_answer = False
        """The whole answer is kept beside what is written, because its content is traced."""
        self.holds_end = False
        """The client gets the last event of its last sample once the call's end is kept."""
        self._unended_samples = checked.call.samples
        self._end: list[bytes] = []
        """Events that are held until then."""
        self.merger: Merger | None = None
        """The whole answer so far, of a call that is not streamed or may be continued."""
        self.queue_s: float | None = None
        """Seconds from submission until the worker began, known with its first chunk; for an answer that
        is one object, as soon as its start is reported or assumed."""
        self.ttft_s: float | None = None
        """Seconds from submission to the first output; None: there was none."""
        self.may_have_begun = False
        """The last attempt's worker may work on the prompt, though it has reported nothing."""
        self.stop_order: Cancel | None = None
        """Control's order to stop the call, which may arrive from the submission on."""
        self.problem: Exception | None = None
        """Why the attempt has to end: WorkerStreamError, or what the writer raised."""
        self.error: FairServeError | None = None
        """The error that the client gets in place of an answer, or of its end."""
        self.attempts = 0
        self.used = NO_USAGE
        """Usage of a call that has ended, as control has it."""
        self._grant: Grant | None = None
        self._submitted_s = now_s
        self._failures = 0
        """Attempts that failed while a worker had the call."""
        self._upstream_error = ""
        """Message of the last worker that answered the call with an error."""
        self._held: list[WorkerChunk] = []
        """Chunks before the first output."""
        self._has_begun = False
        """The writer has begun its answer."""
        self._whole_started = False
        """The worker has started, or is assumed to have started, a call that it does not stream."""
        self._reported_tokens = 0
        self._report_now = False
        """True if control has to know of a step at once."""
        self.meter = self._new_meter()

    @property
    def grant(self) -> Grant:
        """Worker, weight, client and lease of the current attempt."""
        assert self._grant is not None, "the call waits for its first worker"
        return self._grant

    @property
    def last_grant(self) -> Grant | None:
        """Return the latest grant; None before the first."""
        return self._grant

    def _step(self, step: Step) -> None:
        self.state = TRANSITIONS[self.state][step]

    # --- the worker -------------------------------------------------------------------------------

    def granted(self, grant: Grant) -> WorkerRequest:
        """Take a worker; return what is sent there."""
        self._step("granted")
        self._grant = grant
        self.attempts += 1
        self.queue_s = None
        self._whole_started = False
        self._held.clear()
        self.problem = None
        if self.attempts > 1:
            self.meter = self._new_meter()
        self._reported_tokens = 0
        if self._keeps_answer():
            self.merger = self.request.merger()
            self.merger.keeps_logprobs = not self._is_written
        return self._worker_request(grant)

    def _worker_request(self, grant: Grant) -> WorkerRequest:
        request, core = self.request, self.checked.call
        return WorkerRequest(
            path=request.path,
            body=self.body,
            call_id=self.checked.record_id,
            client_id=grant.client_id,
            tenant=core.tenant,
            weight=grant.weight,
            cache_salt=core.salt,
            token_ids=core.token_ids,
            input_tokens=core.prompt_tokens,
            max_output_tokens=core.max_output_tokens,
            expected_output_tokens=grant.expected_output_tokens,
            stream=self.streams,
            traceparent=grant.traceparent,
        )

    def _new_meter(self) -> UsageMeter:
        checked = self.checked
        call = checked.call
        return UsageMeter(call.prompt_tokens, call.system_tokens, checked.usage_bounds)

    @property
    def _is_written(self) -> bool:
        """True if the client gets the output as it arrives, and not from the merged answer."""
        return self.streams and self.writer is not None

    def _keeps_answer(self) -> bool:
        return not self._is_written or self.checked.conversation is not None or self.keeps_answer

    def moved(self, worker_id: str) -> None:
        """Take another worker as the one that has the call: a gateway could not use the granted one."""
        self._grant = replace(self.grant, worker_id=worker_id)

    def started(self, now_s: float) -> None:
        """Record the start of a call whose worker reports nothing more before its answer.

        A client that then disconnects has used its inputs, and the output that control estimates.
        """
        if self.state != "sent":
            return
        self._step("started")
        self.meter.started = self._report_now = True
        self._whole_started = self.checked.call.max_output_tokens > 0
        self.queue_s = now_s - self._submitted_s

    def answered(self, now_s: float) -> None:
        """Take that the worker has begun to answer."""
        if self.queue_s is None:
            self.queue_s = now_s - self._submitted_s

    def received(self, chunks: Sequence[WorkerChunk], now_s: float) -> bytes:
        """Take chunks of the answer, or the whole of it; return what the client gets now.

        An answer beyond what the call may generate, or one that cannot be written, leaves its
        :attr:`problem`: the driver writes what is returned, and ends the attempt.
        """
        if self.state == "sent":
            self._step("started")
            self.meter.started = self._report_now = True
        self.answered(now_s)
        written: list[bytes] = []
        try:
            for chunk in chunks:
                self._take(chunk, now_s, written)
        except Exception as error:
            self.problem = error
        return b"".join(written)

    def _take(self, chunk: WorkerChunk, now_s: float, written: list[bytes]) -> None:
        if chunk.form is not None and not self._shows_usage:
            self.meter.read_text(chunk.text_bytes, chunk.output_tokens)
        else:
            self.meter.read(chunk.data)
            if self._shows_usage:
                self.meter.show(chunk.data)
        if self.merger is not None:
            self.merger.add(chunk)
        if self.state == "answering":
            if self.writer is not None:
                written.append(self._event(self.writer, chunk))
        else:
            self._held.append(chunk)
            if self.streams and chunk.has_content:
                self._step("output")
                self.ttft_s = now_s - self._submitted_s
                self._report_now = True
                written.append(self._release_held())

    def begin(self) -> bytes:
        """Return the events before the first output, once; then nothing."""
        if self._has_begun or self.writer is None:
            return b""
        self._has_begun = True
        return self.writer.begin()

    def _release_held(self) -> bytes:
        held, self._held = self._held, []
        if self.writer is None:
            return b""
        return self.begin() + b"".join(self._event(self.writer, chunk) for chunk in held)

    def _event(self, writer: AnswerWriter, chunk: WorkerChunk) -> bytes:
        """Return the events that the client gets of a chunk now."""
        event = writer.event(chunk)
        if self.holds_end and self._is_end(chunk):
            self._end.append(event)
            return b""
        return event

    def _is_end(self, chunk: WorkerChunk) -> bool:
        """Return whether all samples have ended with this chunk, or before."""
        if chunk.form is None:
            choices = chunk.data.get("choices") or ()
            ended = sum(choice.get("finish_reason") is not None for choice in choices)
            self._unended_samples -= ended
        return self._unended_samples <= 0

    def completed(self) -> tuple[bytes, Release]:
        """Take the end of a complete answer; return the client's rest before its end, and the report."""
        rest = self._release_held() if self.streams else b""
        self._step("completed")
        return rest, self._release("completed")

    def recorded(self) -> bytes:
        """Take that a crash cannot lose the row any more; return what the client gets before the end."""
        self._step("ended")
        return b"".join(self._end)

    # --- progress ---------------------------------------------------------------------------------

    @property
    def report_due(self) -> bool:
        """True if control has to know the usage now, and not within ``REPORT_S``."""
        new_tokens = self.meter.running_tokens() - self._reported_tokens
        return self._report_now or new_tokens >= REPORT_TOKENS

    def report(self) -> Progress:
        """Return the usage so far for control, which renews the lease."""
        meter, usage = self.meter, self.meter.usage()
        self._reported_tokens, self._report_now = usage.output_tokens, False
        return Progress(self.grant.call_id, meter.started, usage, meter.cached_tokens_reported)

    def lease_ended(self) -> None:
        """Take control's answer that the call has no lease any more, which stops it."""
        if self.stop_order is None:
            self.stop_order = Cancel(self.grant.call_id, "failed", "its lease has ended")

    # --- the end ----------------------------------------------------------------------------------

    def left(self, reason: str = LEFT) -> Release:
        """End a call whose answer nobody reads any more."""
        self._use_unreported_prompt()
        self._step("ended")
        return self._release("cancelled", reason)

    def _use_unreported_prompt(self) -> None:
        """Count the prompt of a call that its client ends, if its worker may work on it.

        Else who ends each call before its first output would have such workers for nothing.
        """
        if self.state == "sent" and self.may_have_begun:
            self.meter.started = True

    def broke(self, error: BaseException) -> Release:
        """End a call whose answer could not be written, for a reason that is not the worker's."""
        self._step("ended")
        internal = f"internal error: {type(error).__name__}"
        self.error = (
            error if isinstance(error, FairServeError) else FairServeError("internal error")
        )
        return self._release(
            "failed", error.message if isinstance(error, FairServeError) else internal
        )

    def rejected(self, error: FairServeError) -> None:
        """End a call that control has rejected, or ended while it waited."""
        self._step("ended")
        self.error = error

    def unread(self) -> Release:
        """End a call whose answer the driver does not see: complete, with the expected output."""
        core = self.checked.call
        self.used = self.meter.total()._replace(
            input_tokens=core.input_tokens,
            system_tokens=core.system_tokens,
            output_tokens=self.grant.expected_output_tokens,
        )
        self._step("ended")
        return Release(self.grant.call_id, "completed", self.used)

    def failed(self, error: WorkerError, *, lost: bool = False, last: bool = False) -> Release:
        """Take the failure of the worker; return the report of it.

        If it asks for another worker, the call waits again. Otherwise it has ended, and :attr:`error` is
        for the client. ``lost``: the worker left while it had the call. ``last``: the driver can send
        the call to no other worker.
        """
        worker_id = self.grant.worker_id
        if isinstance(error, WorkerRejectedError):
            # Before an output the worker has computed nothing, also where its start was assumed.
            usage = NO_USAGE if self.ttft_s is None else self.meter.total()
            name = self.checked.answer_name
            public = RejectedByWorkerError(self.request.rejected(error, worker_id, name))
            return self._fails(public, str(error), usage)
        if (stop := self.stop_order) is not None:
            if stop.outcome == "cancelled":
                self._use_unreported_prompt()
            self._step("ended")
            self.error = self.stopped_error()
            return self._release(stop.outcome, stop.reason)
        failure = _Failure(error, lost)
        text = f"{worker_id}: {public_message(str(error))}"
        if self._is_spent(failure):
            spent = f"worker {worker_id} failed while it was answering: {failure.client_text}"
            return self._fails(WorkerFailedError(spent), text)
        self._count(failure)
        if last or self.attempts >= MAX_ATTEMPTS or self._failures >= MAX_FAILURES:
            return self._fails(self._no_answer(failure), text)
        self._step("returned")
        return Release(
            self.grant.call_id, "failed", NO_USAGE, error=text, retry_on_another_worker=True
        )

    def _fails(self, error: FairServeError, text: str, usage: TokenUsage | None = None) -> Release:
        self._step("ended")
        self.error = error
        return self._release("failed", text, usage)

    def _is_spent(self, failure: _Failure) -> bool:
        """Return whether the failed attempt has used the worker for an output."""
        if self._whole_started:
            return failure.lost or failure.cause not in ("worker", "busy")
        return self.ttft_s is not None

    def _count(self, failure: _Failure) -> None:
        """Count a failed attempt, unless it ended because its worker was lost or busy."""
        if failure.cause == "busy" or failure.lost:
            return
        self._failures += failure.cause != "worker"
        if failure.cause == "failed":
            self._upstream_error = failure.client_message or "the worker gave no reason"

    def _no_answer(self, failure: _Failure) -> FairServeError:
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

    def stopped_error(self) -> UnavailableError:
        """Return the client's error of a call that control has stopped."""
        return UnavailableError(
            "the call was stopped" if self.stop_order is None else self.stop_order.reason,
            code="call_stopped",
            headers={"Retry-After": "5"},
        )

    def _release(
        self, outcome: CallOutcome, error: str = "", usage: TokenUsage | None = None
    ) -> Release:
        continued: dict[str, Any] = {}
        conversation, merger = self.checked.conversation, self.merger
        if outcome == "completed" and conversation is not None and merger is not None:
            continued = {
                "continuation_keys": conversation.answered(merger.messages()),
                "requested_tools": merger.requested_tools,
            }
        self.used = self.meter.total() if usage is None else usage
        return Release(
            self.grant.call_id,
            outcome,
            self.used,
            ttft_s=self.ttft_s,
            error=error,
            **continued,
        )

    def facts(self) -> dict[str, object]:
        """Return the fields of the access line: model, worker, tokens, and times as far as known."""
        fields: dict[str, object] = {"model": self.checked.call.served_model}
        if self._grant is not None:
            used = self.used
            fields |= {
                "worker": self._grant.worker_id,
                "prompt_tokens": used.prompt_tokens,
                "cached_tokens": used.cached_tokens,
                "output_tokens": used.output_tokens,
            }
        for name, seconds in (("queue_s", self.queue_s), ("ttft_s", self.ttft_s)):
            if seconds is not None:
                fields[name] = round(seconds, 4)
        return fields


class _Failure:
    """A worker's failure as its call sees it."""

    def __init__(self, error: WorkerError, lost: bool) -> None:
        assert isinstance(error, WorkerStreamError | WorkerUnavailableError), error
        self.cause: FailureCause = error.cause
        self.client_message = error.client_message
        self.lost = lost

    @property
    def client_text(self) -> str:
        """The kind of failure, for the client: it names no address."""
        if self.lost:
            return "it was lost"
        if self.client_message:
            return f"it reported: {self.client_message}"
        return _KINDS[self.cause]
