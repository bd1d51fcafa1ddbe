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
from dataclasses import replace

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerClient,
    WorkerRequest,
    WorkerStream,
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

    async def open(self, request: WorkerRequest) -> WorkerStream:
        """Send a call; see :class:`~fairserve.engine.wire.base.WorkerClient`."""
        generation = self._circuit.generation
        self.sequences += request.sequences
        key = self.expect_start(request.sequences, None if request.streams else request.on_started)
        request = replace(request, on_started=lambda: self.unstarted.start(key))
        try:
            stream = await self._client.open(request)
        except BaseException as error:
            self.sequences -= request.sequences
            self.unstarted.remove(key)
            if isinstance(error, WorkerUnavailableError):
                self.failed(generation, error, request.tenant)
            raise
        return _WatchedStream(stream, self, generation, request, key)

    def expect_start(self, sequences: int, on_started: Callable[[], None] | None) -> int:
        """Follow a call that is being sent; see :class:`UnstartedCalls` for its key."""
        return self.unstarted.add(sequences, self._clock(), on_started)

    def carried(self, request: WorkerRequest) -> CarriedCall:
        """Count a call that another process sends to the worker now."""
        return CarriedCall(self, request, self._circuit.generation)

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


class CarriedCall:
    """A call at the worker whose tokens another process carries. Ends by :meth:`end`."""

    def __init__(self, watched: WatchedClient, request: WorkerRequest, generation: int) -> None:
        """Count a call of this generation of the worker; its ``on_started`` learns of its start."""
        self._watched = watched
        self._streams = request.streams
        self._key = watched.expect_start(request.sequences, request.on_started)
        self._generation = generation
        self._tenant = request.tenant
        self._sequences = request.sequences
        watched.sequences += self._sequences

    def began(self) -> None:
        """Record that the worker has begun to answer: the header has arrived.

        The header of a stream is sent when the worker has accepted the call, before its start.
        """
        if not self._streams:
            self.started()
        self._watched.began(self._generation)

    def started(self) -> None:
        """Report the start of the call, if it is not known yet."""
        self._watched.unstarted.start(self._key)

    def failed(self, error: WorkerUnavailableError) -> None:
        """Record that the worker did not begin to answer."""
        if self._sequences:
            self._watched.failed(self._generation, error, self._tenant)

    def end(self) -> None:
        """Count the call no more. May be repeated."""
        self._watched.unstarted.remove(self._key)
        self._watched.sequences -= self._sequences
        self._sequences = 0


class _WatchedStream:
    def __init__(
        self,
        stream: WorkerStream,
        watched: WatchedClient,
        generation: int,
        request: WorkerRequest,
        key: int,
    ) -> None:
        self._stream = stream
        self._watched = watched
        self._generation = generation
        self._tenant = request.tenant
        self._sequences = request.sequences
        self._key = key
        self._begun = False

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> WorkerChunk:
        try:
            chunk = await self._stream.__anext__()
        except WorkerUnavailableError as error:
            if self._sequences:  # otherwise it was closed here, which is no failure of the worker
                self._watched.failed(self._generation, error, self._tenant)
            self._leave()
            raise
        except Exception:
            self._leave()
            raise
        if not self._begun:
            self._begun = True
            self._watched.unstarted.remove(self._key)
            self._watched.began(self._generation)
        return chunk

    def close(self) -> None:
        self._leave()
        self._stream.close()

    def _leave(self) -> None:
        self._watched.sequences -= self._sequences
        self._watched.unstarted.remove(self._key)
        self._sequences = 0
