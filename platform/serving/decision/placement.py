"""A call that control granted to a worker, and the handle that reports its progress and end.

The relay or a gateway carries the answer and reports; the placement decides what follows. A worker that
fails before the first output of a streamed call, or before the start of any other, costs only time: the
call is queued again and another worker gets it, ``MAX_ATTEMPTS`` in all. A call that failed
``MAX_FAILURES`` times while a worker had it is not retried, because it may be what makes workers fail;
where a worker gave a reason, the client gets it as 502. Nor is one that is not streamed and failed after
its start, because it has used the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fairserve.engine.wire.base import FailureCause, WorkerRejectedError
from fairserve.engine.wire.upstream_message import public_message
from fairserve.interactions.call import NO_USAGE, TokenUsage
from fairserve.platform.base.errors import (
    FairServeError,
    UnavailableError,
    UpstreamError,
    WorkerFailedError,
)
from fairserve.platform.control.messages import Cancel, Grant, Progress, Release
from fairserve.platform.control.port import ControlPort
from fairserve.platform.serving.decision.check import CheckedCall
from fairserve.platform.serving.decision.rejection import RejectedByWorkerError, Rejection
from fairserve.scheduling.events import CallOutcome

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MAX_FAILURES = 2
"""Attempts of a call that may have failed because of the call itself."""
MAX_LOGGED_CHARS = 300
"""Characters of a worker's error in the log: it may repeat parts of the prompt."""


@dataclass(frozen=True, slots=True)
class Used:
    """Use of a worker by one attempt."""

    usage: TokenUsage = NO_USAGE
    ttft_s: float | None = None
    """Seconds from submission to the first output; None: there was no output."""
    whole_started: bool = False
    """The worker has started, or is assumed to have started, a call that it does not stream."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """The failure of one attempt at a worker."""

    message: str
    """The reason for operators; it may name addresses."""
    cause: FailureCause
    client_message: str = ""
    """The worker's message, fit for the client."""
    worker_lost: bool = False
    """The worker left while it had the call."""
    status: int | None = None
    """HTTP status of the worker's answer; None: it sent none, or broke off after 200."""
    rejected: WorkerRejectedError | None = None
    """The worker's answer, if it rejected the request itself."""

    @property
    def client_text(self) -> str:
        """The kind of failure, for the client: it names no address."""
        if self.worker_lost:
            return "it was lost"
        if self.client_message:
            return f"it reported: {self.client_message}"
        return _KINDS[self.cause]


_KINDS: Mapping[FailureCause, str] = MappingProxyType(
    {
        "worker": "it serves no calls",
        "busy": "it accepts no calls now",
        "silent": "its connection broke, or it did not answer in time",
        "unknown": "it reported an error",
        "failed": "it reported an error",
    }
)


class StopSignal:
    """Control's order to stop a call, which may arrive from the submission on."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self.cancel: Cancel | None = None
        self._notify = notify

    def __call__(self, cancel: Cancel) -> None:
        """Record the order and notify the carrier, which closes the connection to the worker."""
        self.cancel = cancel
        self._notify()


class Placement:
    """A worker for a call. Ends by exactly one :meth:`end`, or a :meth:`failed` that rejects."""

    def __init__(
        self, checked: CheckedCall, grant: Grant, stop: StopSignal, control: ControlPort
    ) -> None:
        self.checked = checked
        self.grant = grant
        """Worker, weight, client and lease of the current attempt."""
        self._stop = stop
        self._control = control
        self._attempts = 1
        self._failures = 0
        """Attempts that failed while a worker had the call."""
        self._upstream_error = ""
        """Message of the last worker that answered the call with an error."""

    @property
    def stopped(self) -> str | None:
        """Reason for which control stopped the call; None: it has not."""
        return None if self._stop.cancel is None else self._stop.cancel.reason

    def progress(
        self,
        usage: TokenUsage,
        *,
        started: bool,
        cached_tokens_reported: bool,
    ) -> bool:
        """Report the usage so far, which renews the lease.

        Return False if the lease has ended, which stops the call.
        """
        report = Progress(self.grant.call_id, started, usage, cached_tokens_reported)
        renewed = self._control.progress(report)
        if not renewed and self._stop.cancel is None:
            self._stop.cancel = Cancel(self.grant.call_id, "failed", "its lease has ended")
        return renewed

    def served_by(self, worker_id: str) -> None:
        """Record that another worker serves the call: its gateway could not use the granted one.

        An unknown worker is ignored.
        """
        if worker_id != self.grant.worker_id and self._control.moved(self.grant.call_id, worker_id):
            self.grant = replace(self.grant, worker_id=worker_id)

    async def failed(
        self, failure: AttemptFailure, used: Used, *, last: bool = False
    ) -> Rejection | None:
        """Report that the worker failed. None: :attr:`grant` names the next worker.

        A rejection is the end of the call, which is released. Waits for the next worker's turn. With
        ``last`` the gateway can send the call to no other worker: there is always a rejection.
        """
        if failure.rejected is not None:
            # Before an output the worker has computed nothing, also where its start was assumed.
            computed = used if used.ttft_s is not None else Used()
            await self.end("failed", computed, error=failure.message)
            return Rejection(RejectedByWorkerError(failure.rejected))
        if (stop := self._stop.cancel) is not None:
            await self.end(stop.outcome, used, error=stop.reason)
            return self._stop_rejection()
        worker_id = self.grant.worker_id
        self._log(failure)
        text = f"{worker_id}: {public_message(failure.message)}"
        if self._spent(failure, used):
            await self.end("failed", used, error=text)
            return Rejection(
                WorkerFailedError(
                    f"worker {worker_id} failed while it was answering: {failure.client_text}"
                )
            )
        self._count(failure)
        if last or self._attempts == MAX_ATTEMPTS or self._failures >= MAX_FAILURES:
            await self.end("failed", used, error=text)
            return Rejection(self._no_answer(failure))
        return await self._retry(text)

    def _log(self, failure: AttemptFailure) -> None:
        worker_id = self.grant.worker_id
        fields = {
            "call_id": self.checked.record_id,
            "worker": worker_id,
            "status": failure.status,
            "cause": "lost" if failure.worker_lost else failure.cause,
            "attempt": self._attempts,
        }
        text = failure.message[:MAX_LOGGED_CHARS]
        logger.warning("worker %s failed a call: %s", worker_id, text, extra={"fields": fields})

    async def end(
        self,
        outcome: CallOutcome,
        used: Used,
        *,
        error: str = "",
        messages: Sequence[Mapping[str, Any]] = (),
        requested_tools: bool = False,
    ) -> None:
        """Report the end of the call. Everything is done before this first suspends.

        ``messages`` are those of a complete answer that another call may continue; ``requested_tools``:
        it requests tools.
        """
        conversation = self.checked.conversation
        continued: dict[str, Any] = {}
        if outcome == "completed" and conversation is not None:
            continued = {
                "continuation_keys": conversation.answered(messages),
                "requested_tools": requested_tools,
            }
        release = Release(
            self.grant.call_id,
            outcome,
            used.usage,
            ttft_s=used.ttft_s,
            error=error,
            **continued,
        )
        await self._control.release(release)

    async def recorded(self) -> None:
        """Wait until the end of the call is in the ledger even if this process is killed now."""
        await self._control.recorded()

    async def _retry(self, error: str) -> Rejection | None:
        release = Release(
            self.grant.call_id,
            "failed",
            NO_USAGE,
            error=error,
            retry_on_another_worker=True,
        )
        try:
            grant = await self._control.release(release)
        except FairServeError as error:
            return Rejection(error)
        if grant is None:
            return self._stop_rejection()
        self.grant = grant
        self._attempts += 1
        return None

    @staticmethod
    def _spent(failure: AttemptFailure, used: Used) -> bool:
        """Return whether the failed attempt has used the worker for an output."""
        if used.whole_started:
            return failure.worker_lost or failure.cause not in ("worker", "busy")
        return used.ttft_s is not None

    def _count(self, failure: AttemptFailure) -> None:
        """Count a failed attempt, unless it ended because its worker was lost or busy."""
        if failure.cause == "busy" or failure.worker_lost:
            return
        self._failures += failure.cause != "worker"
        if failure.cause == "failed":
            self._upstream_error = failure.client_message or "the worker gave no reason"

    def _no_answer(self, failure: AttemptFailure) -> FairServeError:
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

    def _stop_rejection(self) -> Rejection:
        return Rejection(
            UnavailableError(
                self.stopped if self.stopped is not None else "the call was stopped",
                code="call_stopped",
                headers={"Retry-After": "5"},
            )
        )
