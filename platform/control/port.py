"""The interfaces of control: the only part of it, with its messages, that other rooms use.

The embedded default is :class:`fairserve.platform.control.service.ControlService` in the same
process; scaled out the same methods send their messages through Redis. ``progress`` and ``cancel``
do not wait for their effect. Only the server, which makes the parts of control, imports more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fairserve.interactions.call import Call
from fairserve.interactions.run_rules import Clue
from fairserve.interactions.tracking.run import RestoredRun
from fairserve.platform.control.call_state import CallState as CallState
from fairserve.platform.control.messages import (
    CallView,
    Cancel,
    Client,
    ClientState,
    ClusterView,
    Entitlements,
    Grant,
    LevelView,
    OnMessage,
    OnRunEvent,
    Progress,
    RejectCall,
    Release,
    RunView,
    Submit,
)
from fairserve.platform.control.storage import RowsLedger as RowsLedger
from fairserve.platform.control.storage import ServingRight as ServingRight
from fairserve.platform.tenancy.apps.inboxes import ControlInbox
from fairserve.scheduling.dispatch.admission import LimitsInUse
from fairserve.scheduling.events import CallOutcome, Event, InteractionEnded
from fairserve.throttling.quotas.contracts import ContractUse
from fairserve.throttling.quotas.quota import QuotaScope


class CallListener:
    """Receives the events of calls and runs. Override what you need: each method does nothing.

    Control calls the methods on the event loop, in the order of the events; each returns at once and
    raises nothing. A call changes while it lives; a listener only reads it, except for
    ``traceparent``. ``now_s`` is the time of the monotonic clock. Cost: one call per listener.
    """

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Handle the acceptance of a call, which is queued now."""

    def call_granted(self, call: CallState) -> None:
        """Handle the grant of a queued call, which has a worker now."""

    def call_requeued(self, call: CallState) -> None:
        """Handle the return of a call to the queue after its worker failed."""

    def call_started(self, call: CallState, now_s: float) -> None:
        """Handle the start of a call at its worker; ``call.queue_s`` is how long it waited.

        For a streamed call that is its first chunk, for any other what reports or implies the start.
        """

    def call_progressed(self, call: CallState, now_s: float) -> None:
        """Handle new totals in ``call.usage``."""

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Handle the end of an accepted call, with all of its usage; once per call."""

    def call_dropped(self, call: CallState) -> None:
        """Handle the end of an accepted call that the journal could not store: it has no row."""

    def call_rejected(self, call: CallState, reason: str, now_s: float) -> None:
        """Handle the rejection of a call that never was accepted."""

    def run_opened(self, tenant: str) -> None:
        """Handle the start of a run, or its reopening."""

    def run_ended(self, run: InteractionEnded) -> None:
        """Handle the end of a run, whose last calls may end later."""


class ControlPort(ControlInbox, Protocol):
    """Control as the rest of the platform sees it.

    Calls and runs, views, and changes: of settings (:class:`ControlInbox`), workers and the system.
    """

    @property
    def shared(self) -> bool:
        """True if other servers put calls into the same order."""
        ...

    async def submit(self, message: Submit, on_message: OnMessage) -> Grant | RejectCall:
        """Queue a call and wait for its grant.

        Cancelling the task withdraws the call. ``on_message`` is called from the event loop: with the
        call's place in its run before the answer, and if it must stop after its grant. A call whose
        client named no run joins the run that its clues name. Raises a FairServeError: 404, 409 or
        422 if the call does not fit its run (nothing is recorded then), 503 if it was not granted in
        time, the queue is full, control is draining, the call cannot be written to the journal, or
        another server may hold the database.
        """
        ...

    def progress(self, message: Progress) -> bool:
        """Report the usage of a granted call; return false if its lease has expired."""
        ...

    def moved(self, call_id: str, worker_id: str) -> bool:
        """Report that a granted call has started at another worker than that of its grant.

        Return false if the call has ended, or no such worker serves its model.
        """
        ...

    async def release(self, message: Release) -> Grant | None:
        """End a granted call; called exactly once per grant.

        With ``retry_on_another_worker`` it requeues the call, waits and returns the new grant, or
        raises as ``submit`` does. Without, everything is done before it first suspends, so that a task
        that is being cancelled may still call it; it then waits, for a call that failed, until calls of
        other servers are after this end in a shared order. None: the call has ended.
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

    def quota_in_use(self, scope: QuotaScope, owner: str, user: str = "") -> ContractUse:
        """Return the use of one quota; ``owner`` is the tenant, or the app of the scope ``app``."""
        ...

    def model_allowed(self, tenant: str, app: str, user: str, model: str) -> bool:
        """Return true if the user's quotas allow calls that name this model."""
        ...

    def priority_granted(self, tenant: str, app: str, user: str) -> bool:
        """Return true if the user's calls in the app may have the tier ``priority``."""
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

    def run_of(self, owner: Client, clues: Sequence[Clue], answer: Sequence[int]) -> str | None:
        """Return the id of the run that a call's clues name now; its submission decides.

        ``answer`` are the keys of the last answer that the call may continue.
        """
        ...

    def follow_run(self, run_id: str, on_event: OnRunEvent, sharer: str) -> Callable[[], None]:
        """Deliver the events of a run and its calls from now on; the result ends that.

        The run need not exist. ``sharer`` is the tenant that follows, or the operators. Raises
        RateLimitedError or UnavailableError if there are too many followers.
        """
        ...

    async def interaction(self, run_id: str) -> RunView | None:
        """Return a run that is live, or ended so lately that the database may lack it; else None.

        This and what lists and follows runs raise UnavailableError while another version decides.
        """
        ...

    async def runs(
        self,
        tenant: str | None,
        app: str | None,
        limit: int,
        *,
        user: str | None = None,
        held: bool | None = None,
    ) -> list[RunView]:
        """Return live runs, of a tenant, app and user if given, the latest opened first.

        ``held`` selects those that wait for memory, or the others, among the latest thousand.
        """
        ...

    def held_runs(self, run_ids: Iterable[str]) -> frozenset[str]:
        """Return which of these runs wait for memory: a queued call of theirs does."""
        ...

    async def interaction_calls(self, run_id: str) -> list[CallView]:
        """Return the queued and running calls of a run, in the order of their acceptance.

        A long list is read in portions: a call that ends in between may be missing.
        """
        ...

    def tier_weight(self, call: Call) -> float:
        """Return the factor of the call's tier on the service that its client is entitled to."""
        ...

    def entitlements(self, clients: Collection[Client]) -> Entitlements:
        """Return what each of these clients is entitled to among them.

        From any thread, because it only reads settings: for many clients it takes tens of milliseconds.
        """
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

    def subscribe(self, listener: CallListener, *, own: bool = False) -> None:
        """Notify a listener of the calls and runs from now on; before the first call.

        ``own``: only of calls that were submitted in this process, and of runs.
        """
        ...

    def apply_throttling(self, system: str, parameters: Mapping[str, Any]) -> None:
        """Change the system or its parameters while calls run; from any thread, waits for it.

        Raises ValueError (or KeyError for a name) that states what is allowed; nothing has changed then.
        """
        ...

    def observe(self, event: Event) -> None:
        """Apply what is seen of a worker, if this process is to report it; from any thread."""
        ...

    async def cluster(self) -> ClusterView:
        """Return the state of workers, queues and load."""
        ...
