"""Keep answers by ``Idempotency-Key``: a request that is sent again gets the first one's answer.

While the first runs, the others read along with it; a disconnect ends none of them, so that a client
whose connection broke can fetch its answer. Only complete answers are kept, so a rejection
or a failure may be retried with the same key; so may a call whose answer is too large to be kept. A
store keeps them: of this process (:class:`OwnAnswers`), or of all servers that share an order
(:class:`~fairserve.platform.serving.completions.redis_answers.RedisAnswers`).

A request whose first is in progress at another server waits for its end, because a client does not
choose its server and gets the answer at the first one, too. After ``WAIT_S`` it is answered 409 with
``Retry-After``, as in draft-ietf-httpapi-idempotency-key-header, and clients of OpenAI retry it.
Weakness: while it waits, it gets no part of a stream and no keep-alive.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.base.errors import ConflictError, InvalidRequestError, UnprocessableError
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.serving.bodies import BodyReservation, draining_error
from fairserve.platform.serving.completions.answer import AnswerBuffer, ConnectionSink
from fairserve.platform.serving.completions.producer import Producer

T = TypeVar("T")

MAX_KEY_CHARS = 255
MAX_ENTRIES = 10_000
MAX_BYTES = 64 * 1024 * 1024
RETENTION_S = 3600.0
MAX_RUNNING_BYTES = 4 * MAX_BYTES
"""Bytes of the answers in progress. One beyond them reaches its clients, and is not kept."""
RUNNING_SHARE = 1 / 4
TOO_LARGE = "and its answer is too large to be read by others, too"
WAIT_S = 60.0
"""Longest wait for a call at another server, in seconds."""
MAX_WAITING = 1_000
"""Requests that wait for calls at other servers."""
WAITING_SHARE = 1 / 4
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 1.0
"""Seconds between two looks at a call of another server; each is twice as long as the one before."""
RETRY_S = "2"
REPLAYED = {"x-fairserve-replayed": "true"}


class IdempotentRequest(NamedTuple):
    """A request with a key, and who sent it."""

    tenant: str
    app: str
    key: str
    fingerprint: str
    """Hash that is equal for equal requests."""

    def check(self, fingerprint: str, other: str) -> None:
        """Raise UnprocessableError if the key belongs to a request with another fingerprint."""
        if fingerprint != other:
            raise UnprocessableError(
                "the Idempotency-Key was used for another request",
                param="Idempotency-Key",
                code="idempotency_key_reused",
            )


@dataclass(slots=True, eq=False)
class AnswerClaim:
    """The right of one producer to answer a request."""

    request: IdempotentRequest
    owner: str = ""
    """Name of this claim, for a store of several processes."""
    answer: AnswerBuffer | None = None
    """The complete answer; None while the call runs, or after it failed."""


class Busy(Enum):
    """The answer to a request whose first has a claim at another server."""

    BUSY = "busy"


class AnswerStore(Protocol):
    """Complete answers, and claims of calls in progress. Belongs to one event loop."""

    async def find(self, request: IdempotentRequest) -> AnswerBuffer | Busy | None:
        """Return the complete answer, if there is one.

        Raises UnprocessableError if the key was used for another request, and UnavailableError if the
        store does not answer.
        """
        ...

    async def claim(self, request: IdempotentRequest) -> AnswerBuffer | Busy | AnswerClaim:
        """Return a claim, or what another request has. Raises as :meth:`find` does."""
        ...

    def end(self, claim: AnswerClaim) -> None:
        """Keep the answer of a claim; without one, let another request claim the key."""
        ...

    def start(self) -> None:
        """Begin what runs beside the requests."""
        ...

    async def close(self) -> None:
        """Store what is not stored yet, and stop."""
        ...


class _Kept(NamedTuple):
    request: IdempotentRequest
    answer: AnswerBuffer


class OwnAnswers:
    """Answers of this process: bounded by number, bytes and age.

    A full table evicts answers of the tenant that has most. Weakness: a restart forgets the keys.
    """

    def __init__(
        self,
        *,
        retention_s: float = RETENTION_S,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._kept: SharedTable[tuple[str, str], _Kept] = SharedTable(max_entries)
        self._retention_s = retention_s
        self._unit_bytes = max_bytes / max_entries

    async def find(self, request: IdempotentRequest) -> AnswerBuffer | None:
        """See the protocol. Never suspends."""
        kept = self._kept.get((request.app, request.key), self._clock())
        if kept is None:
            return None
        request.check(kept.request.fingerprint, request.fingerprint)
        return kept.answer

    async def claim(self, request: IdempotentRequest) -> AnswerBuffer | AnswerClaim:
        """See the protocol. Never suspends: the caller knows what runs in this process."""
        return await self.find(request) or AnswerClaim(request)

    def end(self, claim: AnswerClaim) -> None:
        """See the protocol."""
        if claim.answer is not None:
            request, now_s = claim.request, self._clock()
            size = units(claim.answer.size_bytes, self._unit_bytes)
            kept = _Kept(request, claim.answer)
            self._kept.expire(now_s)
            until_s, name = now_s + self._retention_s, (request.app, request.key)
            self._kept.put((request.tenant,), name, kept, until_s, size=size)

    def items(self) -> Iterator[tuple[IdempotentRequest, AnswerBuffer, float]]:
        """Yield request, answer and seconds that are left of each that has not expired."""
        now_s = self._clock()
        for _, _, until_s, kept in self._kept.items():
            if until_s > now_s:
                yield *kept, until_s - now_s

    def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def units(size_bytes: int, unit_bytes: float) -> int:
    """Return the entries that an answer counts as, so that one limit bounds number and bytes."""
    return max(1, math.ceil(size_bytes / unit_bytes))


@dataclass(slots=True)
class _Running:
    claim: AnswerClaim
    buffer: AnswerBuffer
    task: asyncio.Task[None] | None = None


class IdempotentAnswers:
    """Answers by (app, key), complete or in progress. Belongs to one event loop."""

    def __init__(
        self,
        store: AnswerStore | None = None,
        *,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = OwnAnswers() if store is None else store
        self._wait_s, self._clock = wait_s, clock
        self._running: dict[tuple[str, str], _Running] = {}
        self._running_bytes = SharedLimit(MAX_RUNNING_BYTES, RUNNING_SHARE)
        self._waiting = SharedLimit(MAX_WAITING, WAITING_SHARE)
        self._paused = False

    async def find(self, request: IdempotentRequest) -> AnswerBuffer | None:
        """Return the answer to the same request, complete or still being written.

        Waits for a call at another server. Raises UnprocessableError if the key was used for another
        request, ConflictError if the call at another server lasts, and UnavailableError if the store
        does not answer.
        """
        return await self._look(request, self.store.find)

    async def begin(
        self,
        request: IdempotentRequest,
        producer: Producer,
        reservation: BodyReservation | None = None,
    ) -> tuple[AnswerBuffer, bool]:
        """Run a producer in the background, unless the request has an answer by now.

        Returns the answer, and whether it is an earlier request's. Raises as :meth:`find` does, and
        runs nothing then. The memory of the body is released when the producer ends, and not with the
        request.
        """
        claim: AnswerBuffer | AnswerClaim = await self._look(request, self.store.claim)
        if isinstance(claim, AnswerBuffer):
            return claim, True
        running = _Running(claim, AnswerBuffer(self._running_bytes, request.tenant))
        self._running[request.app, request.key] = running
        running.task = asyncio.create_task(self._run(running, producer), name="idempotent call")
        if reservation is not None:
            reservation.held_by_call = True
            running.task.add_done_callback(lambda _: reservation.release())
        return running.buffer, False

    async def _look(
        self,
        request: IdempotentRequest,
        look: Callable[[IdempotentRequest], Awaitable[T | Busy]],
    ) -> T | AnswerBuffer:
        found = self._along(request) or await look(request)
        if not isinstance(found, Busy):
            return found
        until_s, pause_s = self._clock() + self._wait_s, FIRST_LOOK_S
        with self._place(request.tenant):
            while isinstance(found, Busy):
                if self._paused:
                    raise draining_error()
                if self._clock() >= until_s:
                    raise _in_progress()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_LOOK_S)
                found = self._along(request) or await look(request)
            return found

    def _along(self, request: IdempotentRequest) -> AnswerBuffer | None:
        """Return the answer that is being written here."""
        running = self._running.get((request.app, request.key))
        if running is None:
            return None
        request.check(running.claim.request.fingerprint, request.fingerprint)
        if not running.buffer.whole_until_now:
            raise _in_progress(TOO_LARGE)
        return running.buffer

    @contextmanager
    def _place(self, tenant: str) -> Iterator[None]:
        if self._waiting.take(tenant) is not None:
            raise _in_progress()
        try:
            yield
        finally:
            self._waiting.release(tenant)

    async def _run(self, running: _Running, producer: Producer) -> None:
        claim = running.claim
        try:
            await producer.produce(running.buffer)
        finally:
            running.buffer.finish()
            del self._running[claim.request.app, claim.request.key]
            if producer.succeeded and running.buffer.kept:
                claim.answer = running.buffer
            self.store.end(claim)

    def start(self) -> None:
        """Start the store."""
        self.store.start()

    def pause(self) -> None:
        """Let nobody wait for calls at other servers any more: the server drains."""
        self._paused = True

    async def close(self) -> None:
        """Cancel what still runs (after control has drained there is nothing)."""
        tasks = [each.task for each in self._running.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()


def _in_progress(state: str = "at another server") -> ConflictError:
    return ConflictError(
        f"the first request with this Idempotency-Key is in progress {state}; send it again in"
        f" {RETRY_S} s",
        param="Idempotency-Key",
        code="idempotency_key_in_progress",
        headers={"Retry-After": RETRY_S},
    )


async def follow(buffer: AnswerBuffer, sink: ConnectionSink, *, replayed: bool) -> None:
    """Send a kept answer to one client. Raises ConflictError if its beginning is not kept any more."""
    if not buffer.whole_until_now:
        raise _in_progress(TOO_LARGE)
    await buffer.replay(sink, REPLAYED if replayed else {})


def checked_key(value: str | None) -> str | None:
    """Return the header's value, or None without one. Raises InvalidRequestError."""
    if value is None:
        return None
    key = value.strip()
    if not key or len(key) > MAX_KEY_CHARS or not key.isprintable():
        raise InvalidRequestError(
            f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} printable characters",
            param="Idempotency-Key",
        )
    return key
