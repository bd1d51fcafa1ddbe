"""The values that cross the border of control: messages, events of runs, records and views.

An API replica *submits* a call, receives a *grant* (or a rejection), carries the answer of the granted
worker itself, reports *progress*, and *releases* the call at its end. A grant is a lease: without
progress it expires after ``lease_s``. The embedded default sends the messages through memory; scaled
out they travel through Redis streams (DESIGN, "Roles"). Records are the rows of journal and ledger;
views are the state of control at one moment. Wall-clock times are UTC epoch seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fairserve.interactions.call import Call, ServiceTier, TokenUsage
from fairserve.interactions.tracking.run import RunState
from fairserve.scheduling.events import CallOutcome
from fairserve.scheduling.fairness.level_weights import EntitledShares
from fairserve.throttling.base import Decision

Client = tuple[str, str, str]
"""Tenant, app and user."""
USER_BLOCKED = "an operator has blocked this user"
"""Message to the clients of calls that a block rejects or cancels."""


# --- calls -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallSource:
    """The request behind a call, as traces show it. Control does not interpret it."""

    endpoint: str = ""
    """Path of the protocol's endpoint."""
    traceparent: str = ""
    """W3C trace context that the client sent, unchecked; empty: none."""


NO_SOURCE = CallSource()


@dataclass(frozen=True, slots=True)
class Submit:
    """API -> control: queue this call. The API chooses its id and never reuses it.

    Control works on a copy of the call: what it finds out is in its answers.
    """

    call: Call
    record_id: str
    """Key of the ledger row. It differs from the call's id, which a client may choose and reuse."""
    fingerprint: str = ""
    """Equal for equal requests of one app; empty if the call never counts as a repetition."""
    user_agent_retry: bool = False
    """True if the client library marked the call as a retry after a lost answer."""
    source: CallSource = NO_SOURCE


@dataclass(frozen=True, slots=True)
class Attached:
    """Control -> API: the place of a call in its run, before any other answer."""

    interaction_id: str
    stage: int
    run_rule: str
    """Rule that named the run; "" if the call began an unnamed one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Control -> API: send this call to this worker now."""

    call_id: str
    """Id of the call in control, which differs from the submitted one if that was repeated."""
    worker_id: str
    client_id: str
    """Path of the client for the worker's scheduler; ``weight`` divides its charges there."""
    weight: float
    queue_s: float
    lease_s: float
    expected_output_tokens: int = 0
    """Expected output tokens over all samples, for the worker's scheduler."""
    traceparent: str = ""
    """W3C trace context of the call's span, for the worker; empty: calls are not traced."""
    held: bool = False
    """True if the call waited for memory of its run."""

    @property
    def sampled(self) -> bool:
        """True if the call's span is recorded."""
        return self.traceparent.endswith("-01")


@dataclass(frozen=True, slots=True)
class RejectCall:
    """Control -> API: answer with a rejection; its ledger row is already in the journal."""

    call_id: str
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
    """Seconds from submission to the first content token; None without one, or if not streamed."""
    error: str = ""
    continuation_keys: tuple[int, ...] = ()
    """Keys by which a later call of the run is recognised as a continuation of this one."""
    requested_tools: bool = False
    """True if the answer requests tools."""
    retry_on_another_worker: bool = False
    """The worker failed before the first token of a streamed call, or before the start of any other:
    queue the call again, a new grant follows."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Both ways: stop this call.

    API -> control: the client disconnected. Control -> API: a granted call must stop, because its
    run was cancelled or its lease expired; the API closes the stream and answers an error.
    """

    call_id: str
    outcome: CallOutcome = "cancelled"
    reason: str = ""


OnMessage = Callable[[Attached | Cancel], None]
"""Called by control, on the event loop, with what a call's client gets beside answers: its place in its
run once, and an order to stop."""


# --- records ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One ledger row. A duration is None if the call ended before it began."""

    call_id: str
    tenant: str
    app: str
    user: str
    model: str
    interaction_id: str
    stage: int
    agent: str | None
    outcome: CallOutcome
    accepted_at: float
    ended_at: float
    input_tokens: int = 0
    """Prompt tokens without ``system_tokens``."""
    system_tokens: int = 0
    cached_tokens: int = 0
    extend_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of ``output_tokens``."""
    expected_output_tokens: int | None = None
    """Prediction at its admission; None if it was not admitted."""
    service: float = 0.0
    """Linear cost, wp=1, wq=2 (ALGORITHMS section 1), cached tokens included."""
    queue_delay_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    worker: str | None = None
    name: str = ""
    """The client's id of the call; a generated one where it chose none."""
    parents: tuple[str, ...] = ()
    """Names of the calls of its run that it follows, given or inferred."""
    served_model: str = ""
    """Model that served ``model``, the name in the request."""
    wasted: bool = False
    """Tokens were spent on a call that did not complete."""
    estimated: bool = False
    """``output_tokens`` is a forecast: the call ended early, and its worker had reported none."""
    service_tier: ServiceTier = "default"
    charged: bool = True
    """False for a first attempt that no worker began and that its client has repeated."""
    cost: int = 0
    """Nanounits of the currency; a call that failed, or that is not charged, costs nothing."""
    price_id: str = ""
    """Id of the price of ``cost``; empty where the model had none."""
    error: str = ""
    refusal_reason: str = ""
    refusal_scope: str | None = None
    refusal_limit: int | None = None
    refusal_count: int | None = None
    refusal_window_s: float | None = None
    refusal_retry_after_s: float | None = None
    refusal_inputs: Mapping[str, Any] | None = None
    """Other inputs of a rejection: load, state of the run, money; the columns of its event."""
    mid_run: bool = False
    shared_by: int | None = None
    """Number of calls that share the row, because none of them used anything; None: it has one call."""


@dataclass(frozen=True, slots=True)
class InteractionRecord:
    """One row of the interactions table, written when the interaction ends."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    state: str
    opened_at: float
    ended_at: float
    calls: int
    tokens: int
    wasted_tokens: int
    waste_cause: str = ""
    row_id: str = ""
    """Id of the row that the interaction shares with others; empty: it has a row of its own."""
    shared_by: int | None = None
    """Number of interactions that share the row."""


@dataclass(frozen=True, slots=True)
class OpenInteractionRecord:
    """One row of the open interactions, from which a restart restores a run; ids are the client's.

    Written when a run is opened, when the call that completes it is named, and when its client closes
    it while calls are live. Runs of a single call and those of programs have none.
    """

    interaction_id: str
    tenant: str
    app: str
    user: str
    opened_at: float
    sink: str | None = None
    """Name of the call whose end completes the run."""
    closing: RunState | None = None
    """State with which the run ends once its live calls have ended."""


Record = CallRecord | InteractionRecord | OpenInteractionRecord


@dataclass(frozen=True, slots=True)
class Rows:
    """Database rows of a part of the journal."""

    calls: Sequence[CallRecord] = ()
    ended: Sequence[InteractionRecord] = ()
    opened: Sequence[OpenInteractionRecord] = ()
    """Runs that are open after this part. A run in ``ended`` is open only if it is here, too."""

    def __len__(self) -> int:
        """Number of records."""
        return len(self.calls) + len(self.ended) + len(self.opened)

    def records(self) -> list[Record]:
        """Return all records, in their order."""
        return [*self.calls, *self.ended, *self.opened]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Rows:
        """Return the rows of these records."""
        return cls(
            [each for each in records if isinstance(each, CallRecord)],
            [each for each in records if isinstance(each, InteractionRecord)],
            [each for each in records if isinstance(each, OpenInteractionRecord)],
        )


# --- events of runs --------------------------------------------------------------------------------


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


# --- views -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunView:
    """An interaction that is live or ended lately. Ids are core ids; times UTC epoch seconds."""

    interaction_id: str
    tenant: str
    app: str
    user: str
    state: str
    opened_at: float
    last_active_at: float
    calls: int
    live_calls: int
    tokens: int
    ended_at: float | None = None
    wasted_tokens: int = 0
    waste_cause: str = ""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call that is queued or running."""

    state: Literal["held", "queued", "running"]
    """A ``held`` call is queued, and waits for memory of its run."""
    record: CallRecord
    """Its row as known so far; the outcome in it has no meaning yet."""


@dataclass(frozen=True, slots=True)
class ClientState:
    """Weights, limits and counter of a client as they are now."""

    tenant_weight: float
    app_weight: float
    user_weight: float
    weight: float
    """Product of the three."""
    blocked: bool
    user_rpm: int | None
    """Limits under overload, calls a minute: of the user, and of its app as a whole."""
    app_rpm: int | None
    counter: float | None
    """The feeder's counter above that of the least served sibling with calls queued, in the feeder's
    unit, the largest of all models; None where none is queued, or the feeder counts nothing."""


@dataclass(frozen=True, slots=True)
class LevelView:
    """A level of a client's path, in one model's pool."""

    model: str
    path: tuple[str, ...]
    counter: float | None
    """Counter of the feeder, in its unit: the smaller is served first; None where it counts nothing."""
    least_counter: float | None
    """The smallest of its siblings, itself included, with calls queued; None if there are none."""
    credits: dict[str, float]
    """The router's deficit by worker, above 0 where the client is in credit; empty without one."""


class Entitlements(NamedTuple):
    """Entitlements of clients among each other."""

    shares: EntitledShares
    typical_service: Mapping[str, float]
    """Tokens of a typical call by app, where the system in force counts typical calls; else 1."""

    def service(self) -> dict[Client, float]:
        """Return the service that each client is entitled to, in one unit for all."""
        return {
            client: share * self.typical_service[client[1]]
            for client, share in self.shares.among().items()
        }


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as control sees it."""

    worker_id: str
    draining: bool
    kv_capacity_tokens: int
    demand_tokens: int
    waiting_tokens: int
    calls: int
    model: str = ""
    foreign_tokens: int = 0
    """Tokens of calls from other servers at this worker, as it reported."""
    resident_tokens: int = 0
    """Tokens of KV cache for the runs that have a place there; 0 if the system has no residents."""
    sequences: int = 0
    """Sequences of the calls sent to it."""
    slots: int | None = None
    """Sequences that it runs at a time; None if unknown."""
    window_tokens: float | None = None
    """``waiting_tokens`` with which it gets no further calls; None if the system has no such window."""
    drain_cost_tokens: int | None = None
    """Tokens of the prompts of its runs in progress, which their next calls would compute again at
    another worker; None if the system has no residents."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model's pool as control sees it."""

    model: str
    overloaded: bool
    demand_tokens: int
    capacity_tokens: int
    queued_calls: int
    high_watermark: float = 0.0
    """Load, demand over capacity, at which overload begins; it ends at ``low_watermark``."""
    low_watermark: float = 0.0
    background_queued_calls: int = 0
    background_running_calls: int = 0
    held_calls: int = 0
    """Queued calls of runs that wait for memory; 0 if the system has no residents."""
    resident_runs: int = 0
    """Runs that may hold memory."""
    queued_tokens: int = 0
    """Demand of the queued calls."""
    expected_wait_s: float = 0.0
    """Expected wait of a call that is queued now; 0 while work does not wait."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of control at one moment."""

    system: str
    overloaded: bool
    draining: bool
    demand_tokens: int
    capacity_tokens: int
    queued_calls: int
    running_calls: int
    live_interactions: int
    workers: tuple[WorkerView, ...]
    models: tuple[ModelView, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
