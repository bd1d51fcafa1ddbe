"""A worker behind a local queue: ``open`` waits until the call may be sent, its stream is charged.

A call that is cancelled while it waits leaves the queue; one that was sent is cancelled by its
client. If the server requests a pause (429), the call is returned to the platform and the others of
its tenant wait until the pause ends, at most a minute; those of all tenants once two tenants got a
429. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable

from fairserve.engine.wire.base import (
    WorkerChunk,
    WorkerClient,
    WorkerRequest,
    WorkerStream,
    WorkerUnavailableError,
)
from fairserve.engine.wire.chunk_output import output_chunks
from fairserve.engine.wire.local_queue import LocalQueue
from fairserve.engine.wire.reported_usage import UsageBounds, read_usage
from fairserve.scheduling.base import LocalCall

MAX_PAUSE_S = 60.0

CallLater = Callable[[float, Callable[[], None]], object]


class QueuedClient:
    """A :class:`~fairserve.engine.wire.base.WorkerClient` that queues the calls of another one."""

    def __init__(
        self,
        client: WorkerClient,
        queue: LocalQueue,
        clock: Callable[[], float],
        call_later: CallLater | None = None,
    ) -> None:
        """Queue the calls of ``client``. ``call_later`` uses ``clock``; default: the running loop's."""
        self.queue = queue
        """Queue of the calls; callers only read it."""
        self._client = client
        self._clock = clock
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._turns: dict[str, asyncio.Future[str]] = {}
        """Result of each wait: empty if the call may be sent, else the reason why it never will be."""
        self._numbers = itertools.count(1)
        self._wakes_s = -1.0

    @property
    def paused_s(self) -> float:
        """Return the remaining seconds of the longest pause that the server requested."""
        return self.queue.paused_s(self._clock())

    async def open(self, request: WorkerRequest) -> WorkerStream:
        """Send the call when it is next; see :class:`~fairserve.engine.wire.base.WorkerClient`."""
        call_id = await self.turn(request)
        try:
            stream = await self._client.open(request)
        except BaseException as error:
            if isinstance(error, WorkerUnavailableError):
                self.pause(error, request.tenant)
            self.end(call_id)
            raise
        return _QueuedStream(stream, self, call_id, request.usage_bounds)

    async def turn(self, request: WorkerRequest) -> str:
        """Wait until the call may be sent, and return its id in the queue, for :meth:`end`.

        Raises WorkerUnavailableError if it never may.
        """
        call = LocalCall(
            call_id=f"{request.call_id} {next(self._numbers)}",
            client_id=request.client_id,
            prompt_tokens=max(1, request.prompt_tokens),
            max_output_tokens=max(1, request.max_output_tokens) * request.sequences,
            token_ids=request.token_ids,
            weight=request.weight,
            expected_output_tokens=request.expected_output_tokens,
        )
        turn = self._turns[call.call_id] = asyncio.get_running_loop().create_future()
        self.queue.add(call, request.tenant)
        try:
            self._advance()
            if lost := await turn:
                raise WorkerUnavailableError(lost)
        except BaseException:
            self.end(call.call_id)
            raise
        return call.call_id

    def requeue(self, reason: str) -> None:
        """Fail the waiting calls with ``reason``, so that each is tried at another worker."""
        for turn in self._turns.values():
            if not turn.done():
                turn.set_result(reason)

    def pause(self, error: WorkerUnavailableError, tenant: str) -> None:
        """Pause as the server requested by failing a call of this tenant; no effect if it did not."""
        if error.pause_s is not None:
            now_s = self._clock()
            self.queue.pause(now_s, now_s + min(error.pause_s, MAX_PAUSE_S), tenant)

    def end(self, call_id: str) -> None:
        """Remove a call and send the next ones."""
        self._turns.pop(call_id, None)
        self.queue.end(call_id)
        self._advance()

    def _advance(self) -> None:
        now_s = self._clock()
        for call_id in self.queue.send(now_s):
            turn = self._turns.pop(call_id)
            if not turn.done():  # otherwise it was cancelled or released, and is about to leave
                turn.set_result("")
        resume_s = self.queue.next_resume_s(now_s)
        scheduled = now_s < self._wakes_s <= resume_s
        if self.queue.waiting and resume_s < math.inf and not scheduled:
            self._wakes_s = resume_s
            self._call_later(resume_s - now_s, self._wake)

    def _wake(self) -> None:
        self._wakes_s = -1.0
        self._advance()


class _QueuedStream:
    def __init__(
        self, stream: WorkerStream, client: QueuedClient, call_id: str, bounds: UsageBounds
    ) -> None:
        self._stream = stream
        self._client = client
        self._call_id = call_id
        self._bounds = bounds
        self._charged_tokens = 0
        self._ended = False

    def __aiter__(self) -> _QueuedStream:
        return self

    async def __anext__(self) -> WorkerChunk:
        try:
            chunk = await self._stream.__anext__()
        except Exception:
            self._end()
            raise
        if not self._ended:
            total = read_usage(chunk.data.get("usage"), self._bounds).output_tokens
            tokens = output_chunks(chunk.data) if total is None else total - self._charged_tokens
            tokens = min(tokens, self._bounds.output_tokens - self._charged_tokens)
            if tokens > 0:
                self._charged_tokens += tokens
                self._client.queue.decoded(self._call_id, tokens)
        return chunk

    def close(self) -> None:
        self._stream.close()
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._client.end(self._call_id)
