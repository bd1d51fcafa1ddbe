"""Protocols of the schedulers: local schedulers (when), feeders (whose call) and routers (where).

*Who is next* is separate from *what fits*: a policy offers calls in its order, the engine or the
dispatcher decides which of them fit. A pass over a local scheduler reads

    scheduler.start_pass(cache)
    while (call := scheduler.peek()) is not None:
        cached = engine.try_admit(call)          # None: does not fit now
        scheduler.skip() if cached is None else scheduler.accept(cached)

which is also the shape of vLLM's admission loop (peek, allocate, pop). No scheduler has a clock,
a thread or randomness of its own. Ties break by arrival, then by client id, everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fairserve.interactions.call import (
    NO_TOKENS,
    Call,
    ClientPath,
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
    """Tokens that it is going to generate: known only to a simulator, for oracle predictions."""
    expected_output_tokens: int = 0
    """Output tokens that its app's profile predicts; 0: unknown."""
    path: ClientPath = ()
    """Levels of the client, outermost first; read from ``client_id`` if not given."""

    def __post_init__(self) -> None:
        if not self.path:
            self.path = path_of_id(self.client_id)


class CacheListener(Protocol):
    """Listener for a cache's stored and evicted blocks, named as in :meth:`PrefixCache.match`."""

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        """Handle that this block was stored or evicted.

        A name may represent several blocks in a row of which the last were evicted: it then concerns the
        calls whose match ends there with more than ``beyond_tokens``.
        """
        ...

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        """Handle renamed blocks: matches of at most ``up_to_tokens`` that ended at ``name``
        end at ``other`` now, and are as long as they were.
        """
        ...


class PrefixCache(Protocol):
    """An engine's prefix cache, as its local scheduler sees it: matches, and events of changed blocks.

    A waiting call's match changes only when the last block of its match is evicted or the one after it
    is stored. The cache gives these two names, any hashable values, and publishes the names whose
    blocks changed; so a scheduler matches a call again only after an event of one of its two names. A
    needless event costs a match; a missing one leaves the call in a wrong place.
    """

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """Return ``(tokens, last, following)`` of a waiting call; no side effects.

        Prompt tokens that are cached now; the name published when the last block of that match is
        evicted (None if nothing matches and nothing can be evicted); and the name published when the
        block after it is stored (None if the whole prompt matches). Calls with the same name agree on
        their prompts as far as both match there.
        """
        ...

    def follow(self, listener: CacheListener) -> None:
        """Notify the listener of blocks that are stored or evicted from now on.

        Of blocks stored in one run, one after another, the name of the first is enough: no call waits
        for those behind it.
        """
        ...


class LocalScheduler(Protocol):
    """The order in which one engine takes waiting calls into its batch."""

    def add(self, call: LocalCall) -> None:
        """Queue a call. Raises ValueError for a known id."""
        ...

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a scheduling step; calls skipped in the last pass may be offered again."""
        ...

    def peek(self) -> LocalCall | None:
        """Return the call offered next, the same until ``accept`` or ``skip``. None ends the pass."""
        ...

    def accept(self, cached_tokens: int) -> None:
        """Move the peeked call into the batch, with this many prompt tokens from the cache."""
        ...

    def skip(self) -> None:
        """Pass over the peeked call: it does not fit at present."""
        ...

    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge the ``tokens`` that a running call generated in the last forward step."""
        ...

    def finish(self, call_id: str) -> None:
        """Remove a call that ended or was cancelled, waiting or running. Raises KeyError if unknown."""
        ...

    def requeue(self, call_id: str) -> None:
        """Queue a preempted call again; nothing is charged twice."""
        ...

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """Return how far a running call's client is ahead of its siblings in service, outermost level
        first.

        The greatest is preempted first by an engine that chooses its victims fairly. Comparable between
        the calls of one scheduler at one time; () where the policy counts no service. KeyError if the
        call does not run.
        """
        ...

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        ...


class Feeder(Protocol):
    """The order in which the cluster takes calls from its one queue."""

    def add(self, call: Call) -> None:
        """Queue a call that was not rejected."""
        ...

    def remove(self, call_id: str) -> Call | None:
        """Drop a queued call (cancelled, expired); None if it is not queued."""
        ...

    def peek(
        self, open_workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """Return the call to dispatch next to one of these workers; changes nothing.

        ``excluded`` are ids of queued calls that none of these workers may take. The others are
        ordered as if they were not there; they keep their place for a later selection.
        """
        ...

    def peek_hit(
        self, workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """Return a call to dispatch before its turn to one of these workers, for its cached prefix.

        None if there is none, or the policy lets no call overtake; changes nothing.
        """
        ...

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Take a queued call out, charge what is charged at selection, and return its charge factor.

        ``cached_tokens`` is what its worker is believed to have. The charge factor is in feeder units
        per unit of extend cost, 1 where the feeder has no weights (ALGORITHMS section 7).
        """
        ...

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """Charge a dispatched call for what it has used so far."""
        ...

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """Charge ``(call id, output tokens so far)`` of calls that ``charge`` was called for before."""
        ...

    def finish(self, call_id: str, usage: TokenUsage) -> float | None:
        """End a dispatched call with this usage; release the unused reservation.

        Returns the whole charge of its client for it, in typical calls; None where the policy does not
        count these.
        """
        ...

    def requeue(self, call: Call) -> None:
        """Queue a dispatched call again that lost its worker before its first token.

        It waits as a call of ``call.client``; its earlier charges went to the path it had then.
        """
        ...

    def move(self, paths: Mapping[str, ClientPath]) -> None:
        """Give queued calls, by id, another client. Sets ``Call.client``.

        They keep their place in the order of arrival. A level that both paths of a call have in common
        counts it as queued all the time, and so keeps what it has received. Raises KeyError for a call
        that is not queued.
        """
        ...

    def interaction_ended(self, interaction_id: str) -> None:
        """Forget an interaction that ended: no more of its calls will come."""
        ...

    def share(self, others: Sequence[Feeder]) -> None:
        """Set the feeders of the other models, which get events of service and of active runs from now
        on.

        Runs that are active already are published at once.
        """
        ...

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: tuple[float, ...]
    ) -> None:
        """Apply another feeder's change of a client's counter.

        ``served`` is received service, ``reserved`` is predicted for calls that run there; in the
        policy's own unit, and at each level of the path times its factor, outermost first. Negative
        amounts are refunded, released, or have come true.
        """
        ...

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Record an interaction dispatched by another feeder, or by this service before a restart."""
        ...

    def waiting(self) -> Iterable[Call]:
        """Return the queued calls, in no particular order."""
        ...

    def counter(self, path: ClientPath) -> float | None:
        """Return the service of a client, or of a level above it, in the policy's own unit; changes
        nothing.

        Among siblings the smaller one is served first. None where the policy counts nothing.
        """
        ...

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """Return the smallest counter one level below the end of the path, of those with calls queued.

        None if there are none, or the policy counts nothing; changes nothing.
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
    """Choice of the worker of a call. Cached prompts are looked up in :class:`Locality`."""

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """Add a worker that joins or returns with this many outstanding calls."""
        ...

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker that is gone or drains: it gets no more calls."""
        ...

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """Return the worker for this call among the open ones; None only if none is open."""
        ...

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """Charge a call that is dispatched to the worker."""
        ...

    def started(self, call_id: str) -> None:
        """Record that a dispatched call left its worker's queue."""
        ...

    def tick(self, now_s: float) -> None:
        """Advance the time to ``now_s``, before each event; most routers ignore it."""
        ...

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """Charge a call that ended on that worker or left it; None if the worker is gone."""
        ...

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """Return the deficit by worker of a client, or of a level above it, above 0 where it is in
        credit.

        Empty where the policy has none, or the client is unknown; changes nothing.
        """
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        ...
