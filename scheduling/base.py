"""Protocols of the schedulers: local scheduler (when), feeder (whose call) and router (where).

*Who is next* is separate from *what fits*: a policy offers calls in its order, and the engine or
the dispatcher decides which of them fit. A pass over a local scheduler reads

    scheduler.start_pass(cache)
    while (call := scheduler.peek()) is not None:
        cached = engine.try_admit(call)          # None: does not fit now
        scheduler.skip() if cached is None else scheduler.accept(cached)

like vLLM's admission loop (peek, allocate, pop). No scheduler has a clock, a thread or randomness
of its own. Ties are always broken by arrival, then by client id.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from fairserve.interactions.call import (
    NO_TOKENS,
    Call,
    ClientPath,
    Restriction,
    TokenIds,
    TokenUsage,
    path_of_id,
)


@dataclass(slots=True, eq=False)
class LocalCall:
    """One sequence that waits for, or runs in, the batch of one engine."""

    call_id: str
    client_id: str
    prompt_tokens: int
    max_output_tokens: int
    token_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    weight: float = 1.0
    """Divisor of the call's charges: 1 / charge factor (ALGORITHMS section 7)."""
    arrival: int = 0
    """Arrival number, set by :meth:`LocalScheduler.add`; kept when the call is requeued."""
    output_tokens: int | None = None
    """Tokens that the call will generate: known only to a simulator, for oracle predictions."""
    expected_output_tokens: int = 0
    """Output tokens predicted by the app's profile; 0 means unknown."""
    path: ClientPath = ()
    """Levels of the client, outermost first; parsed from ``client_id`` if not given."""

    def __post_init__(self) -> None:
        if not self.path:
            self.path = path_of_id(self.client_id)


class CacheListener(Protocol):
    """Listener for stored and evicted blocks of a cache, named as in :meth:`PrefixCache.match`."""

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        """Handle that the block of this name was stored or evicted.

        A name may represent several consecutive blocks of which the last were evicted. The event
        then concerns only calls whose match ends there with more than ``beyond_tokens``.
        """
        ...

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        """Handle that blocks were renamed without a change of the cache.

        Matches of at most ``up_to_tokens`` that ended at ``name`` now end at ``other``.
        """
        ...


class PrefixCache(Protocol):
    """An engine's prefix cache, as its local scheduler sees it: matches, and events of changed blocks.

    A waiting call's match changes only when the last block of the match is evicted or the block
    after it is stored. The cache returns the names of these two blocks (any hashable values) and
    publishes the names of changed blocks, so a scheduler matches a call again only after an event
    of one of its two names. A superfluous event costs a match; a missing one leaves the call at a
    wrong place.
    """

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return ``(tokens, last, following)`` for a waiting call; no side effects.

        ``tokens`` is the number of prompt tokens cached now. ``last`` is the name published when
        the last block of the match is evicted (None if nothing matches and nothing can be evicted).
        ``following`` is the name published when the block after it is stored (None if the whole
        prompt matches). Calls with the same name have equal prompts as far as both match there.
        """
        ...

    def follow(self, listener: CacheListener) -> None:
        """Notify the listener of all blocks stored or evicted from now on.

        For consecutive blocks stored at once, the name of the first is enough: no call waits for
        the later ones.
        """
        ...


class LocalScheduler(Protocol):
    """The order in which one engine admits waiting calls to its batch."""

    def add(self, call: LocalCall) -> None:
        """Queue a call. Raises ValueError for a known id."""
        ...

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a scheduling step; calls skipped in the last pass may be offered again."""
        ...

    def peek(self) -> LocalCall | None:
        """Return the next call, the same until ``accept`` or ``skip``; None ends the pass."""
        ...

    def accept(self, cached_tokens: int) -> None:
        """Move the peeked call into the batch; ``cached_tokens`` of its prompt are cached."""
        ...

    def skip(self) -> None:
        """Skip the peeked call, which does not fit now."""
        ...

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge the ``tokens`` that a running call generated in the last forward step."""
        ...

    def finish(self, call_id: str) -> None:
        """Remove a call that ended or was cancelled, waiting or running. KeyError if unknown."""
        ...

    def requeue(self, call_id: str) -> None:
        """Requeue a preempted call; nothing is charged twice."""
        ...

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """Return the service lead of a running call's client over its siblings, outermost level first.

        An engine with fair preemption preempts the call with the greatest surplus first. Values are
        comparable between the calls of one scheduler at one time; () if the policy counts no
        service. Raises KeyError if the call is not running.
        """
        ...

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        ...


class Feeder(Protocol):
    """The order in which the cluster takes calls from its queue."""

    def add(self, call: Call) -> None:
        """Queue an admitted call."""
        ...

    def remove(self, call_id: str) -> Call | None:
        """Remove a queued call (cancelled or expired) and return it; None if it is not queued."""
        ...

    def peek(
        self, open_workers: Collection[str], excluded: Collection[Restriction] = frozenset()
    ) -> Call | None:
        """Return the next call to dispatch to one of these workers; changes nothing.

        ``excluded`` are the restrictions of queued calls that none of these workers can take. The
        other calls are ordered as if these were absent; excluded calls keep their place for a later
        selection.
        """
        ...

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Remove a queued call, apply the charges due at selection, and return its charge factor.

        ``cached_tokens`` is the number believed to be cached at its worker. The charge factor is in
        feeder units per unit of extend cost; 1 if the feeder has no weights (ALGORITHMS section 7).
        """
        ...

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Charge a dispatched call for its usage so far."""
        ...

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """Charge ``(call id, output tokens so far)`` of calls that were passed to ``charge`` before."""
        ...

    def expect(self, call_id: str, output_tokens: int) -> None:
        """Reserve this output of a dispatched call that reports none before its end."""
        ...

    def finish(self, call_id: str, usage: TokenUsage) -> float | None:
        """End a dispatched call with this usage; release the unused reservation.

        Returns the total charge of its client for the call in typical calls; None if the policy
        does not count in them.
        """
        ...

    def requeue(self, call: Call) -> None:
        """Requeue a dispatched call whose worker failed before the first token.

        It waits as a call of ``call.client``; earlier charges remain with its client at that time.
        """
        ...

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Move queued calls, given by id, to other clients. Sets ``Call.client``.

        The calls keep their place in the order of arrival. A level that both paths of a call share
        counts the call as queued throughout, and so keeps its received service. Raises KeyError for
        a call that is not queued.
        """
        ...

    def interaction_ended(self, interaction_id: str) -> None:
        """Forget an ended interaction; no more of its calls will arrive."""
        ...

    def share(self, others: Sequence[Feeder]) -> None:
        """Set the feeders of the other models, which then receive events of service and active runs.

        Runs that are already active are published at once.
        """
        ...

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: tuple[float, ...]
    ) -> None:
        """Apply another feeder's change of a client's counter.

        ``served`` is received service, ``reserved`` the prediction for calls running there, in the
        policy's unit at each level of the path, outermost first, multiplied by the level's factor.
        Negative amounts are refunded, released or realised.
        """
        ...

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Record an interaction dispatched by another feeder, or by this one before a restart."""
        ...

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls, in no particular order."""
        ...

    def counter(self, path: ClientPath) -> float | None:
        """Return the service of a client or of an outer level in the policy's unit; changes nothing.

        Among siblings, the smaller one is served first. None if the policy counts no service.
        """
        ...

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """Return the smallest counter among the children of ``path`` with queued calls.

        None if there are none or the policy counts no service; changes nothing.
        """
        ...

    def __len__(self) -> int: ...

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values, calls by id."""
        ...

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot; ``calls`` resolves the ids."""
        ...


class Router(Protocol):
    """Selection of a call's worker. Cached prompts are looked up in :class:`Locality`."""

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker that joins or returns, with this many outstanding calls."""
        ...

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker that is lost or draining: it receives no more calls."""
        ...

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return the worker for this call among the open ones; None only if none is open."""
        ...

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Charge a call that was dispatched to the worker."""
        ...

    def started(self, call_id: str) -> None:
        """Record that a dispatched call has left its worker's queue."""
        ...

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Charge a call that ended on, or left, this worker; None if the worker is lost."""
        ...

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """Return the deficits of a client or an outer level by worker, positive where it is in credit.

        Empty if the policy has none, or the client is unknown; changes nothing.
        """
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        ...


@runtime_checkable
class TimedRouter(Router, Protocol):
    """Router whose decisions depend on time."""

    def tick(self, now_s: float) -> None:
        """Advance the time to ``now_s``, before each event."""
        ...
