"""The messages between API replicas and control (DESIGN, "Roles"), and the events of a run.

The embedded default sends them through memory; scaled out they travel through Redis streams.
An API replica *submits* a call, receives a *grant* (or a rejection), streams from the granted worker
itself, reports *progress*, and *releases* the call at its end. A grant is a lease: without progress it
expires after ``lease_s``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairserve.interactions.call import Call, TokenUsage
from fairserve.platform.control.record import CallRecord
from fairserve.scheduling.dispatch.events import CallOutcome
from fairserve.throttling.base import Decision


@dataclass(frozen=True, slots=True)
class Submit:
    """API -> control: queue this call. The API chooses its id and never reuses it."""

    call: Call
    record_id: str
    """Key of the ledger row. It differs from the call's id, which a client may choose and reuse."""
    fingerprint: str = ""
    """Equal for equal requests of one app; empty if the call never counts as a repetition."""
    user_agent_retry: bool = False
    """True if the client library marked the call as a retry after a lost answer."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Control -> API: stream this call from this worker now."""

    call_id: str
    interaction_id: str
    stage: int
    worker_id: str
    client_id: str
    """Path of the client for the worker's scheduler; ``weight`` divides its charges there."""
    weight: float
    queue_s: float
    lease_s: float
    expected_output_tokens: int = 0
    """Expected output tokens over all samples, for the worker's scheduler."""


@dataclass(frozen=True, slots=True)
class RefuseCall:
    """Control -> API: answer with a rejection; its ledger row is already in the journal."""

    call_id: str
    interaction_id: str
    stage: int
    decision: Decision
    mid_run: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """API -> control: totals of the usage of a granted call. Renews its lease."""

    call_id: str
    started: bool
    usage: TokenUsage
    cached_tokens_reported: bool = False
    """True if the worker reported its cached tokens; else 0 in ``usage`` means unknown."""


@dataclass(frozen=True, slots=True)
class Release:
    """API -> control: a granted call ended. Sent exactly once per grant, also on disconnect."""

    call_id: str
    outcome: CallOutcome
    usage: TokenUsage
    ttft_s: float | None = None
    """Seconds from submission to the first content token."""
    error: str = ""
    delivered: bool = False
    """True if the client received some of the answer."""
    continuation_keys: tuple[int, ...] = ()
    """Keys by which a later call of the run is recognised as a continuation of this one."""
    requested_tools: bool = False
    """True if the answer requests tools."""
    retry_on_another_worker: bool = False
    """The worker failed before the first token: queue the call again, a new grant follows."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Both ways: stop this call.

    API -> control: the client disconnected. Control -> API: a granted call must stop, because its
    run was cancelled or its lease expired; the API closes the stream and answers an error.
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
