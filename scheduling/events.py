"""Events into the dispatcher and commands out of it: plain values, and its whole interface.

The live service (:mod:`fairserve.platform.control`) and the simulator drive the same dispatcher
with these events. Times are passed apart: ``Dispatcher.handle(event, now_s)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairserve.interactions.call import Call, TokenUsage
from fairserve.interactions.profiles.profile import AppProfile
from fairserve.interactions.tracking.run import RestoredCall as RestoredCall
from fairserve.interactions.tracking.run import RestoredRun as RestoredRun
from fairserve.interactions.tracking.run_end import RunEnd
from fairserve.scheduling.rejection_context import RejectionContext
from fairserve.throttling.base import Decision, Limits
from fairserve.throttling.quotas.price import FREE, TokenPrice
from fairserve.throttling.quotas.quota import UNLIMITED, Quota, QuotaScope

CallOutcome = Literal["completed", "refused", "cancelled", "failed", "expired"]


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AppChanged:
    """An app was registered, or its profile or limits changed. Unknown apps use the defaults."""

    app: str
    profile: AppProfile
    limits: Limits
    weight: float = 1.0
    """Weight of the app's calls, multiplied by the weights of tenant and user."""
    priority_weight: float | None = None
    """Factor on the service of its calls of the tier ``priority``, from 1; None: it may have none."""
    version: int = 0
    """Version of the profile. An event with an older one than is known is ignored."""
    read_later: bool = False
    """True if the change was read from the database some time after it was made: what is known of the
    same version is as new, or newer."""


@dataclass(frozen=True, slots=True)
class TenantChanged:
    """A tenant's own settings."""

    tenant: str
    weight: float = 1.0
    levels: str | None = None
    """Levels of its clients, one of ``TenantLevels``; None for the system's default."""


@dataclass(frozen=True, slots=True)
class ContractChanged:
    """The contract limits of one holder changed; ``UNLIMITED`` without models removes them.

    ``app`` and ``user`` are empty if the scope has none.
    """

    scope: QuotaScope
    tenant: str
    app: str = ""
    user: str = ""
    quota: Quota = UNLIMITED
    models: tuple[str, ...] | None = None
    """Model names that calls may request; None means any."""


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """Cost of ended calls that were accepted in the period that contains ``at`` (UTC epoch seconds).

    The ledger reports calls that ended before a restart, or before their holder had this budget.
    The unit is nanounits; negative for a refund. ``owner`` is tenant, app and user; without a
    ``scope`` the cost counts for every holder that applies to such a call.
    """

    owner: tuple[str, str, str]
    amount: int
    at: float
    scope: QuotaScope | None = None


@dataclass(frozen=True, slots=True)
class UserChanged:
    """A user's own settings. ``weight`` 2 is entitled to twice the service (E_i = 1/weight)."""

    tenant: str
    user: str
    weight: float = 1.0
    rpm: int | None = None
    """Overrides the app's ``user_rpm`` for this user."""
    blocked: bool = False
    priority_weight: float | None = None
    """Weight of the user's calls of the tier ``priority``, in place of the app's; None: the app's."""


@dataclass(frozen=True, slots=True)
class UserStopped:
    """The queued calls of a user are cancelled; with ``running`` its running calls and runs, too."""

    tenant: str
    user: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class CallArrived:
    """A validated, tokenised call arrived. ``at`` is UTC epoch seconds, for budgets."""

    call: Call
    at: float = 0.0
    price: TokenPrice = FREE


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A dispatched call left its worker's queue; ``cached_tokens`` if the worker reported them."""

    call_id: str
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TokensDecoded:
    """Total output tokens so far of running calls, as ``(call id, tokens)``."""

    totals: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A dispatched call ended on its worker."""

    call_id: str
    outcome: CallOutcome
    usage: TokenUsage
    continuation_keys: tuple[int, ...] = ()
    """Keys by which a later call is recognised as a continuation of this one."""
    requested_tools: bool = False
    """True if the call requested tools."""
    charged: bool = True
    """False for an attempt that delivered nothing and was repeated by its client."""


@dataclass(frozen=True, slots=True)
class CallReturned:
    """A dispatched call's worker failed before any output of the call: it is queued again."""

    call_id: str


@dataclass(frozen=True, slots=True)
class CallMoved:
    """A dispatched call has started at another worker: its gateway could not use the first."""

    call_id: str
    worker_id: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The client disconnected, or the call waited too long in the queue (``expired``)."""

    call_id: str
    outcome: CallOutcome = "cancelled"


@dataclass(frozen=True, slots=True)
class InteractionOpened:
    """A client opened an empty run; ``sink`` is the call that completes it.

    ``declared``: the platform opened the run for a program whose calls it will issue.
    """

    interaction_id: str
    tenant: str
    app: str
    user: str
    sink: str | None = None
    declared: bool = False


@dataclass(frozen=True, slots=True)
class InteractionRestored:
    """A run that was open before a restart of the service is restored."""

    run: RestoredRun


@dataclass(frozen=True, slots=True)
class InteractionClosed:
    """A client closed a run (``complete``) or cancelled it with all its calls.

    ``failed``: the run ended without success; ``cancel`` decides whether its calls are cancelled.
    """

    interaction_id: str
    cancel: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is ready, with an empty cache. It serves the calls of its model's pool."""

    worker_id: str
    kv_capacity_tokens: int
    model: str = ""
    context_tokens: int | None = None
    """Maximum tokens of one call; None: the capacity of its KV cache."""
    kind: str = ""
    """Kind of the worker, matched with :attr:`Call.kinds`; empty: it serves every call."""
    slots: int | None = None
    """Sequences that it runs at a time; None if unknown."""


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker is alive. ``foreign_tokens``: tokens held or awaited there by calls of others."""

    worker_id: str
    foreign_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """A worker takes no new calls and finishes the ones it has."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerUndrained:
    """A draining worker takes calls again, with its current cache and calls."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker and its cache are lost. Its calls end or are requeued by separate events."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerCached:
    """A worker that publishes its cache stored blocks, by key (decision 9).

    The blocks are consecutive and follow the block ``parent`` (None: the start of the prompt).
    Events of a lost worker are ignored, since they may be late.
    """

    worker_id: str
    parent: int | None
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerEvicted:
    """A worker that publishes its cache evicted these blocks."""

    worker_id: str
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerCacheReset:
    """A worker starts to publish its cache from the beginning.

    ``complete``: the cache is empty now, and events of all later blocks will follow. Otherwise some
    events were missed: reported blocks are held, and further blocks may be.
    """

    worker_id: str
    complete: bool


CacheReport = WorkerCached | WorkerEvicted | WorkerCacheReset


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: idle interactions expire, silent workers are lost, idle keys are dropped."""


Event = (
    AppChanged
    | TenantChanged
    | UserChanged
    | UserStopped
    | ContractChanged
    | BudgetSpent
    | CallArrived
    | CallStarted
    | TokensDecoded
    | CallEnded
    | CallReturned
    | CallMoved
    | CancelRequested
    | InteractionOpened
    | InteractionRestored
    | InteractionClosed
    | WorkerJoined
    | WorkerReported
    | WorkerDraining
    | WorkerUndrained
    | WorkerLost
    | WorkerCached
    | WorkerEvicted
    | WorkerCacheReset
    | Tick
)


# --- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """Send this call to this worker now."""

    call_id: str
    worker_id: str
    weight: float
    """Weight for the worker's local scheduler: 1 / charge factor."""
    stage: int
    client_id: str
    """Client path encoded for the worker's local scheduler (:func:`client_id`)."""
    held: bool = False
    """True if the call waited for memory of its run."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Reject this call; it never ran.

    It is the arriving call, or a queued one whose place in the full queue goes to the arriving call.
    """

    call_id: str
    decision: Decision
    mid_run: bool
    """True if a call of the interaction had been served already (possible with RPM, never with OIT)."""
    context: RejectionContext | None = None
    """State at the time of the rejection, where known."""


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Stop this call; ``worker_id`` is None if the call was still queued in the dispatcher."""

    call_id: str
    worker_id: str | None
    outcome: CallOutcome


InteractionEnded = RunEnd
"""An interaction ended; its tokens are wasted unless it is complete."""

Command = Admit | Refuse | CancelCall | InteractionEnded
