"""Counts the calls at one worker and reports their starts and failures to its circuit.

A streamed call has begun with its first chunk. The start of one whose answer is a single object is
learned from the worker's metrics (:mod:`fairserve.engine.wire.unstarted_calls`), if nothing reports it
earlier.
A call that the worker rejects, that its client cancels, or that gets a 429 is no evidence about the
worker's health. One that failed after the worker received it is reported with its tenant, because it may
be the cause.
"""

from __future__ import annotations

from collections.abc import Callable

from fairserve.engine.wire.base import (
    AnswerReceiver,
    SentCall,
    Transport,
    WorkerChunk,
    WorkerClient,
    WorkerError,
    WorkerRequest,
    WorkerUnavailableError,
)
from fairserve.engine.wire.circuit import Circuit
from fairserve.engine.wire.unstarted_calls import UnstartedCalls


class WatchedClient:
    """A :class:`~fairserve.engine.wire.base.WorkerClient` that wraps another one."""

    def __init__(
        self,
        client: WorkerClient,
        circuit: Circuit,
        clock: Callable[[], float],
        on_open: Callable[[], None],
    ) -> None:
        """Wrap ``client``; ``on_open`` is called when its calls have opened the circuit."""
        self.sequences = 0
        """Number of sequences of the platform at the worker now."""
        self.unstarted = UnstartedCalls()
        """Calls of the platform at the worker that are not known as started."""
        self._client = client
        self._circuit = circuit
        self._clock = clock
        self._on_open = on_open

    def send(
        self, request: WorkerRequest, receiver: AnswerReceiver, transport: Transport | None = None
    ) -> SentCall:
        """Send a call; see :class:`~fairserve.engine.wire.base.WorkerClient`."""
        call = _WatchedCall(self, request, receiver, self._circuit.generation, self._clock())
        call.sent = self._client.send(request, call, transport)
        return call

    def began(self, generation: int) -> None:
        """Record that a call received its first chunk, or its whole answer."""
        self._circuit.call_began(generation)

    def failed(self, generation: int, error: WorkerUnavailableError, tenant: str) -> None:
        """Record that a call of this tenant did not begin."""
        if error.pause_s is None and self._circuit.call_failed(
            generation,
            str(error),
            self._clock(),
            tenant="" if error.cause in ("worker", "silent") else tenant,
            unreachable=error.unreachable,
        ):
            self._on_open()


class _WatchedCall:
    """A call at the worker: counted from here to its end."""

    def __init__(
        self,
        watched: WatchedClient,
        request: WorkerRequest,
        receiver: AnswerReceiver,
        generation: int,
        now_s: float,
    ) -> None:
        """Count a call of this generation of the worker."""
        self._watched, self._receiver = watched, receiver
        self._request = request
        self._generation = generation
        self._sequences = request.sequences
        watched.sequences += self._sequences
        on_started = None if request.streams else receiver.started
        self._key = watched.unstarted.add(self._sequences, now_s, on_started)
        self._begun = False
        self._left_waiting = False
        """It was known to wait when it ended."""
        self.sent: SentCall | None = None

    # --- AnswerReceiver ---------------------------------------------------------------------------

    def started(self) -> None:
        """Report the start of the call, if it is not known yet."""
        self._watched.unstarted.start(self._key)

    def received(self, chunks: list[WorkerChunk]) -> None:
        """Record the begin with the first chunk."""
        if not self._begun:
            self._begun = True
            self._watched.unstarted.remove(self._key)
            self._watched.began(self._generation)
        self._receiver.received(chunks)

    def ended(self) -> None:
        """Count the call no more."""
        self._leave()
        self._receiver.ended()

    def failed(self, error: WorkerError) -> None:
        """Report a call that did not begin, and count it no more."""
        self._leave()
        if isinstance(error, WorkerUnavailableError):
            self._watched.failed(self._generation, error, self._request.tenant)
        self._receiver.failed(error)

    # --- SentCall ---------------------------------------------------------------------------------

    @property
    def may_have_begun(self) -> bool:
        """Return whether the worker may work on it: no reading of its metrics has found it waiting."""
        return self.sent is not None and self.sent.may_have_begun and not self._waits()

    def close(self) -> None:
        """Count the call no more, and cancel it."""
        self._leave()
        if self.sent is not None:
            self.sent.close()

    def pause(self) -> None:
        """Receive nothing."""
        if self.sent is not None:
            self.sent.pause()

    def resume(self) -> None:
        """Receive again."""
        if self.sent is not None:
            self.sent.resume()

    def _waits(self) -> bool:
        return self._left_waiting or self._watched.unstarted.waits(self._key)

    def _leave(self) -> None:
        self._left_waiting = self._waits()
        if self._sequences:
            self._watched.sequences -= self._sequences
            self._watched.unstarted.remove(self._key)
            self._sequences = 0
