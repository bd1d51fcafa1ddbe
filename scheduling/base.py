"""What the schedulers are: local schedulers (when), feeders (whose) and routers (where).

*Who is next* is kept apart from *what fits*: a policy offers calls in its order, the engine or the
dispatcher says which of them fit. A pass over a local scheduler reads

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
    """Tokens that its app's profile says it will generate; 0: nobody says anything."""
    path: ClientPath = ()
    """Levels of the client, outermost first; read from ``client_id`` if not given."""

    def __post_init__(self) -> None:
        if not self.path:
            self.path = path_of_id(self.client_id)


class CacheListener(Protocol):
    """Told by a cache what becomes of its blocks, by names as in :meth:`PrefixCache.match`."""

    def changed(self, name: Hashable, beyond_tokens: int = -1) -> None:
        """This block was stored or evicted.

        A name may stand for several blocks in a row of which the last were evicted: it then concerns
        the calls whose match ends there with more than ``beyond_tokens``.
        """
        ...

    def renamed(self, name: Hashable, other: Hashable, up_to_tokens: int) -> None:
        """Blocks are called otherwise: matches of up to so many tokens that ended at ``name``
        end at ``other`` now, and are as long as they were.
        """
        ...


class PrefixCache(Protocol):
    """An engine's prefix cache, as its local scheduler sees it: matches, and news of what changed.

    A waiting call's match changes only when the last block of its match goes or the one after it comes.
    The cache gives these two names, any hashable values, and tells the names whose blocks changed; so a
    scheduler matches a call again only when it hears one of its two names. To be told of a name without
    need costs a match; not to be told leaves the call in a wrong place.
    """

    def match(self, call: LocalCall) -> tuple[int, Hashable, Hashable]:
        """``(tokens, last, following)`` of a waiting call; no side effects.

        Prompt tokens that are cached now; a name that is told when the last block of that match is
        evicted (None if nothing matches and nothing can be evicted); and one that is told when the
        block after it is stored (None if the whole prompt matches). Calls with the same name agree
        on their prompts as far as both match there.
        """
        ...

    def follow(self, listener: CacheListener) -> None:
        """Tell of blocks that are stored or evicted from now on.

        Of blocks stored in one run, one after another, the name of the first is enough: nobody waits
        for those behind it.
        """
        ...


class LocalScheduler(Protocol):
    """The order in which one engine takes waiting calls into its batch."""

    def add(self, call: LocalCall) -> None:
        """A call arrives. Raises ValueError for an id that is already here."""
        ...

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a scheduling step; calls skipped in the last pass may be offered again."""
        ...

    def peek(self) -> LocalCall | None:
        """The call offered next; the same one until ``accept`` or ``skip``. None ends the pass."""
        ...

    def accept(self, cached_tokens: int) -> None:
        """The peeked call enters the batch, with so many prompt tokens from the cache."""
        ...

    def skip(self) -> None:
        """The peeked call does not fit at present."""
        ...

    def decoded(self, call_id: str, tokens: int) -> None:
        """A running call generated ``tokens`` more tokens in the last forward step."""
        ...

    def finish(self, call_id: str) -> None:
        """A call ended or was cancelled, waiting or running. Raises KeyError if unknown."""
        ...

    def requeue(self, call_id: str) -> None:
        """A running call was preempted; what it was charged for is not charged again."""
        ...

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """How far a running call's client is ahead of its siblings in service, outermost level first.

        The greatest is preempted first by an engine that chooses its victims fairly. Comparable between
        the calls of one scheduler at one time; () where the policy knows no service. KeyError if the
        call does not run.
        """
        ...

    def __len__(self) -> int:
        """Number of waiting calls."""
        ...


class Feeder(Protocol):
    """The order in which the cluster takes calls from its one queue."""

    def add(self, call: Call) -> None:
        """A call that was not refused arrives."""
        ...

    def remove(self, call_id: str) -> Call | None:
        """Drop a queued call (cancelled, expired); None if it is not queued."""
        ...

    def peek(
        self, open_workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """The call to be dispatched next to one of these workers; changes nothing.

        ``excluded`` are ids of queued calls that none of these workers may take. The others are
        ordered as if they were not there; they keep their place for a later selection.
        """
        ...

    def peek_hit(
        self, workers: Collection[str], excluded: Collection[str] = frozenset()
    ) -> Call | None:
        """The call that may go before its turn to one of these workers, for the prefix it has there.

        None if there is none, or the policy lets nobody go before its turn; changes nothing.
        """
        ...

    def dispatch(self, call_id: str, cached_tokens: int) -> float:
        """Take a queued call out, charge what is charged at selection, and return its charge factor.

        ``cached_tokens`` is what its worker is believed to have. The charge factor is in feeder units
        per unit of extend cost, 1 where the feeder has no weights (ALGORITHMS section 7).
        """
        ...

    def charge(self, call_id: str, usage: TokenUsage) -> None:
        """A dispatched call has used so much in all."""
        ...

    def decoded(self, totals: Iterable[tuple[str, int]]) -> None:
        """``(call id, output tokens so far)`` of calls that ``charge`` was called for before."""
        ...

    def finish(self, call_id: str, usage: TokenUsage) -> float | None:
        """A dispatched call ended with this usage; what was reserved and not used is returned.

        Returns what its client was charged for it in all, in typical calls; None where the policy does
        not count these.
        """
        ...

    def requeue(self, call: Call) -> None:
        """A dispatched call lost its worker before its first token and waits again.

        As a call of ``call.client``: what it was charged, it was charged to the path it had then.
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
        """The interaction is over: nothing of it will come again."""
        ...

    def share(self, others: Sequence[Feeder]) -> None:
        """The feeders of the other models: tell them from now on of service and runs under way.

        Of the runs that are under way already, at once.
        """
        ...

    def served_elsewhere(
        self, client: ClientPath, served: float, reserved: float, factors: tuple[float, ...]
    ) -> None:
        """Another feeder of this kind changed the counter of a client.

        ``served`` is received service, ``reserved`` is predicted for calls that run there; in the
        policy's own unit, and at each level of the path times its factor, outermost first. Negative
        amounts are refunded, released, or have come true.
        """
        ...

    def begun_elsewhere(self, interaction_id: str) -> None:
        """Another feeder has dispatched a call of this interaction, or this service's last life did."""
        ...

    def waiting(self) -> Iterable[Call]:
        """The queued calls, in no particular order."""
        ...

    def counter(self, path: ClientPath) -> float | None:
        """What a client, or a level above it, has received, in the policy's own unit; changes nothing.

        Among siblings the smaller one is served first. None where the policy counts nothing.
        """
        ...

    def least_counter(self, path: ClientPath = ()) -> float | None:
        """The smallest counter one level below the end of the path, of those with calls queued.

        None if there are none, or the policy counts nothing; changes nothing.
        """
        ...

    def __len__(self) -> int: ...

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values, calls by id."""
        ...

    def restore(self, state: dict[str, Any], calls: dict[str, Call]) -> None:
        """Replace the state by an earlier snapshot; ``calls`` resolves the ids."""
        ...


class Router(Protocol):
    """Which worker gets a call. Where prompts are cached it asks :class:`Locality`."""

    def add_worker(self, worker_id: str, calls: int = 0) -> None:
        """A worker joins or returns; so many calls that were dispatched to it are outstanding."""
        ...

    def remove_worker(self, worker_id: str) -> None:
        """A worker is gone, or drains: it gets no more calls."""
        ...

    def select(self, call: Call, open_workers: Collection[str]) -> str | None:
        """The worker for this call among those open; None only if there is none open."""
        ...

    def dispatched(self, call: Call, worker_id: str, charge_factor: float) -> None:
        """The call goes to the worker: charge it."""
        ...

    def started(self, call_id: str) -> None:
        """A dispatched call left its worker's queue."""
        ...

    def tick(self, now_s: float) -> None:
        """Time has come to ``now_s``, before each event; most routers do not look at it."""
        ...

    def finished(
        self, call: Call, worker_id: str | None, charge_factor: float, output_tokens: int
    ) -> None:
        """The call ended on that worker (or left it); None if the worker is gone meanwhile."""
        ...

    def credits(self, path: ClientPath) -> Mapping[str, float]:
        """The deficit by worker of a client, or of a level above it, above 0 where it is in credit.

        Empty where the policy has none, or does not know the client; changes nothing.
        """
        ...

    def snapshot(self) -> dict[str, Any]:
        """State as plain JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        ...
