"""The messages between API replicas and control (DESIGN, "Roles"), and the events of a run.

The embedded default sends them through memory; scaled out they travel through Redis streams.
An API replica *submits* a call, gets a *grant* (or a *refusal*), streams from the granted worker
itself, reports *progress*, and *releases* the call at its end. A grant is a lease: without progress
it ends by itself at ``lease_s``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control.record import CallRecord
from fairserve.scheduling.events import CallOutcome
from fairserve.throttling.base import Decision


@dataclass(frozen=True, slots=True)
class Submit:
    """API -> control: place this call. Its id is chosen by the API and never used again."""

    call: Call
    record_id: str
    """Key of the ledger row. Not the call's id, which a client may choose, and choose again."""
    fingerprint: str = ""
    """Equal for equal requests of one app; empty if nothing may be taken for a repetition."""
    user_agent_retry: bool = False
    """The client library said that this repeats a call whose answer it did not get."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Control -> API: stream this call from this worker now."""

    call_id: str
    interaction_id: str
    stage: int
    worker_id: str
    client_id: str
    """The client's path, for the worker's scheduler; ``weight`` divides its charges there."""
    weight: float
    queue_s: float
    lease_s: float
    expected_output_tokens: int = 0
    """Over all samples, for the worker's scheduler."""


@dataclass(frozen=True, slots=True)
class RefuseCall:
    """Control -> API: answer with a refusal; the ledger row is already on its way."""

    call_id: str
    interaction_id: str
    stage: int
    decision: Decision
    mid_run: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """API -> control: what a granted call has used so far (all totals). Renews the lease."""

    call_id: str
    started: bool
    usage: TokenUsage
    cached_tokens_reported: bool = False
    """Whether the worker said how much it had cached; if not, 0 in ``usage`` means unknown."""


@dataclass(frozen=True, slots=True)
class Release:
    """API -> control: a granted call ended. Sent exactly once per grant, also on disconnect."""

    call_id: str
    outcome: CallOutcome
    usage: TokenUsage
    ttft_s: float | None = None
    """From submission to the first content token."""
    error: str = ""
    delivered: bool = False
    """Whether the client was sent anything of the answer."""
    continuation_keys: tuple[int, ...] = ()
    """Keys by which a later call of the run tells that it continues this one."""
    requested_tools: bool = False
    """The answer asked for tools."""
    retry_on_another_worker: bool = False
    """The worker failed before the first token: queue the call again, a new grant follows."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Both ways: stop this call.

    API -> control: the client went away. Control -> API: a granted call must be stopped, because
    its run was cancelled or its lease has ended; the API closes the stream and answers an error.
    """

    call_id: str
    outcome: CallOutcome = "cancelled"
    reason: str = ""


OnCancel = Callable[[Cancel], None]
"""Called by control, on the event loop, when a granted call must stop."""


@dataclass(frozen=True, slots=True)
class CallEvent:
    """Control -> follower of a run: a call of it has another state."""

    state: str
    """``queued``, ``running``, or how it ended."""
    record: CallRecord
    """Its row as known so far."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Control -> follower of a run: it has ended; a late call may reopen one that timed out."""


@dataclass(frozen=True, slots=True)
class ServerStopping:
    """Control -> follower of a run: this is the last event."""


RunEvent = CallEvent | RunEnded | ServerStopping
OnRunEvent = Callable[[RunEvent], None]
"""Receives the events of a run, on the event loop. Raises nothing."""
