"""Keep answers by ``Idempotency-Key``: a request that is sent again gets the first one's answer.

While the first runs, the others read along with it; a disconnect ends none of them, so that a client
whose connection broke can fetch its answer. Only complete answers are kept, so a rejection
or a failure may be retried with the same key. Bounded by number, bytes and age, per process; a full
table evicts answers of the tenant that has most.

Weakness: held in memory, so a restart forgets the keys.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fairserve.interactions.tracking.shared_table import SharedTable
from fairserve.platform.base.errors import InvalidRequestError, UnprocessableError
from fairserve.platform.serving.bodies import BodyReservation
from fairserve.platform.serving.completions.answer import AnswerBuffer, ConnectionSink
from fairserve.platform.serving.completions.producer import Producer

MAX_KEY_CHARS = 255
REPLAYED = {"x-fairserve-replayed": "true"}


@dataclass(slots=True)
class _Entry:
    fingerprint: str
    buffer: AnswerBuffer = field(default_factory=AnswerBuffer)
    task: asyncio.Task[None] | None = None


class IdempotentAnswers:
    """Answers by (app, key). Belongs to one event loop."""

    def __init__(
        self,
        *,
        retention_s: float = 3600.0,
        max_entries: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._running: dict[tuple[str, str], _Entry] = {}
        self._kept: SharedTable[tuple[str, str], _Entry] = SharedTable(max_entries)
        self._retention_s = retention_s
        self._unit_bytes = max_bytes / max_entries
        """Bytes of an answer that count as one entry, so that one limit bounds number and bytes."""

    def find(self, app: str, key: str, fingerprint: str) -> AnswerBuffer | None:
        """Return the answer to the same request, complete or still being written.

        Raises UnprocessableError if the key was used for another request.
        """
        entry = self._running.get((app, key)) or self._kept.get((app, key), self._clock())
        if entry is None:
            return None
        if entry.fingerprint != fingerprint:
            raise UnprocessableError(
                "the Idempotency-Key was used for another request",
                param="Idempotency-Key",
                code="idempotency_key_reused",
            )
        return entry.buffer

    def begin(
        self,
        tenant: str,
        app: str,
        key: str,
        fingerprint: str,
        producer: Producer,
        reservation: BodyReservation | None = None,
    ) -> AnswerBuffer:
        """Run a producer in the background, under a key that :meth:`find` does not know.

        The memory of the body is released when the producer ends, and not with the request.
        """
        entry = _Entry(fingerprint)
        self._running[app, key] = entry
        work = self._run(tenant, (app, key), entry, producer)
        entry.task = asyncio.create_task(work, name="idempotent call")
        if reservation is not None:
            reservation.held_by_call = True
            entry.task.add_done_callback(lambda _: reservation.release())
        return entry.buffer

    async def _run(
        self, tenant: str, key: tuple[str, str], entry: _Entry, producer: Producer
    ) -> None:
        try:
            await producer.produce(entry.buffer)
        finally:
            entry.buffer.finish()
            del self._running[key]
            if producer.succeeded:
                size = max(1, math.ceil(entry.buffer.size_bytes / self._unit_bytes))
                now_s = self._clock()
                self._kept.expire(now_s)
                self._kept.put((tenant,), key, entry, now_s + self._retention_s, size=size)

    async def close(self) -> None:
        """Cancel what still runs (after control has drained there is nothing)."""
        tasks = [entry.task for entry in self._running.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def follow(buffer: AnswerBuffer, sink: ConnectionSink, *, replayed: bool) -> None:
    """Send a kept answer to one client."""
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
