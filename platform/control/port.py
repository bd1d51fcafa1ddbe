"""The interface of control: the only part of it that other rooms call.

The embedded default is :class:`fairserve.platform.control.service.ControlService` in the same
process; scaled out the same methods send their messages through Redis. ``progress`` and ``cancel``
do not wait for their effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from fairserve.interactions.tracking.run import RestoredRun
from fairserve.platform.control.listener import CallListener
from fairserve.platform.control.messages import (
    Cancel,
    Grant,
    OnCancel,
    OnRunEvent,
    Progress,
    RefuseCall,
    Release,
    Submit,
)
from fairserve.platform.control.record import CallRecord, Client
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.scheduling.dispatch.admission import LimitsInUse


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

    state: Literal["queued", "running"]
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

    shares: Mapping[Client, float]
    """Share of each client in the service of all of them."""
    typical_service: Mapping[str, float]
    """Tokens of a typical call by app, where the system in force counts typical calls; else 1."""

    def service(self) -> dict[Client, float]:
        """Return the service that each client is entitled to, in one unit for all."""
        return {
            client: share * self.typical_service[client[1]] for client, share in self.shares.items()
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


class ControlPort(ControlInbox, Protocol):
    """Control as the rest of the platform sees it.

    Calls and runs, views, and changes: of settings (:class:`ControlInbox`), workers and the system.
    """

    async def submit(self, message: Submit, on_cancel: OnCancel) -> Grant | RefuseCall:
        """Queue a call and wait for its grant.

        Cancelling the task withdraws the call. ``on_cancel`` is called from the event loop if the
        call must stop after its grant. Raises a FairServeError: 404, 409 or 422 if the call does
        not fit its run (nothing is recorded then), 503 if it was not granted in time, the queue
        is full, control is draining, the call cannot be written to the journal, or another server may
        hold the database.
        """
        ...

    def progress(self, message: Progress) -> bool:
        """Report the usage of a granted call; return false if its lease has expired."""
        ...

    async def release(self, message: Release) -> Grant | None:
        """End a granted call; called exactly once per grant.

        With ``retry_on_another_worker`` it requeues the call, waits and returns the new grant, or
        raises as ``submit`` does. Without, everything is done before it first suspends, so that a task
        that is being cancelled may still call it. None: the call has ended.
        """
        ...

    async def recorded(self) -> None:
        """Wait until the released calls reach the ledger even if this process is killed."""
        ...

    def cancel(self, message: Cancel) -> None:
        """Withdraw a queued call; a granted one ends with its release. Unknown ids are ignored."""
        ...

    def limits_in_use(self, tenant: str, app: str, user: str) -> LimitsInUse:
        """Return the remaining quotas and overload limits for the user's next call."""
        ...

    def model_allowed(self, tenant: str, app: str, user: str, model: str) -> bool:
        """Return true if the user's quotas allow calls that name this model."""
        ...

    async def open_interaction(
        self,
        run_id: str,
        tenant: str,
        app: str,
        user: str,
        sink: str | None = None,
        *,
        declared: bool = False,
    ) -> RunView:
        """Open an empty run that the call ``sink`` completes. It survives a restart from then on.

        Raises ConflictError if it exists, and UnavailableError if nothing new is accepted.

        A ``declared`` run belongs to a program: it accepts only its calls, and ends when it is closed.
        """
        ...

    async def restore_interaction(self, run: RestoredRun, opened_at: float) -> None:
        """Continue a run that was open before a restart; one that was closing ends at once.

        Raises ConflictError if there is such a run, and UnavailableError if there are too many.
        """
        ...

    async def close_interaction(self, run_id: str, *, cancel: bool, failed: bool = False) -> None:
        """End a run: complete once its calls have ended, or cancelled with all its calls.

        With ``failed`` it is aborted. Raises NotFoundError or ConflictError.
        """
        ...

    def follow_run(self, run_id: str, on_event: OnRunEvent) -> Callable[[], None]:
        """Deliver the events of a run and its calls from now on; the result ends that.

        The run need not exist. Raises UnavailableError if there are too many followers.
        """
        ...

    async def interaction(self, run_id: str) -> RunView | None:
        """Return a run that is live, or ended so lately that the database may lack it; else None."""
        ...

    async def runs(
        self, tenant: str | None, app: str | None, limit: int, *, user: str | None = None
    ) -> list[RunView]:
        """Return live runs, of a tenant, app and user if given, the latest opened first."""
        ...

    async def interaction_calls(self, run_id: str) -> list[CallView]:
        """Return the queued and running calls of a run, in the order of their acceptance.

        A long list is read in portions: a call that ends in between may be missing.
        """
        ...

    def entitlements(self, clients: Collection[Client]) -> Entitlements:
        """Return what each of these clients is entitled to among them."""
        ...

    def client_state(self, client: Client) -> ClientState:
        """Return the weights, limits and counter of a client."""
        ...

    def client_levels(self, client: Client) -> list[LevelView]:
        """Return the counters and credits of each level of a client's path, model by model."""
        ...

    def client_calls(self, client: Client, limit: int) -> list[CallView]:
        """Return a client's queued and running calls, the first accepted first. O(calls of all)."""
        ...

    def subscribe(self, listener: CallListener) -> None:
        """Notify a listener of the calls and runs from now on; before the first call."""
        ...

    def apply_throttling(self, system: str, parameters: Mapping[str, Any]) -> None:
        """Change the system or its parameters while calls run; from any thread, waits for it.

        Raises ValueError (or KeyError for a name) that states what is allowed; nothing has changed then.
        """
        ...

    async def cluster(self) -> ClusterView:
        """Return the state of workers, queues and load."""
        ...
