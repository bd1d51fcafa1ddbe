"""A worker behind a local queue: a call waits until it may be sent, and its answer is charged there.

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
from functools import partial

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
from fairserve.engine.wire.local_queue import LocalQueue
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
        self._waiting: dict[str, _QueuedCall] = {}
        self._numbers = itertools.count(1)
        self._wakes_s = -1.0

    @property
    def paused_s(self) -> float:
        """Return the remaining seconds of the longest pause that the server requested."""
        return self.queue.paused_s(self._clock())

    def send(
        self, request: WorkerRequest, receiver: AnswerReceiver, transport: Transport | None = None
    ) -> SentCall:
        """Send the call when it is next; see :class:`~fairserve.engine.wire.base.WorkerClient`."""
        call = LocalCall(
            call_id=f"{request.call_id} {next(self._numbers)}",
            client_id=request.client_id,
            prompt_tokens=max(1, request.prompt_tokens),
            max_output_tokens=max(1, request.max_output_tokens) * request.sequences,
            token_ids=request.token_ids,
            weight=request.weight,
            expected_output_tokens=request.expected_output_tokens,
        )
        send = partial(self._client.send, transport=transport)
        queued = _QueuedCall(self, call.call_id, request, receiver, send)
        self._waiting[call.call_id] = queued
        self.queue.add(call, request.tenant, request.body.get("model", ""))
        self._advance()
        return queued

    def requeue(self, reason: str) -> None:
        """Fail the waiting calls with ``reason``, so that each is tried at another worker."""
        for queued in list(self._waiting.values()):
            queued.failed(WorkerUnavailableError(reason))

    def pause(self, error: WorkerUnavailableError, tenant: str) -> None:
        """Pause as the server requested by failing a call of this tenant; no effect if it did not."""
        if error.pause_s is not None:
            now_s = self._clock()
            self.queue.pause(now_s, now_s + min(error.pause_s, MAX_PAUSE_S), tenant)

    def end(self, call_id: str) -> None:
        """Remove a call and send the next ones."""
        self._waiting.pop(call_id, None)
        self.queue.end(call_id)
        self._advance()

    def _advance(self) -> None:
        now_s = self._clock()
        for call_id in self.queue.send(now_s):
            self._waiting.pop(call_id).go()
        resume_s = self.queue.next_resume_s(now_s)
        scheduled = now_s < self._wakes_s <= resume_s
        if self.queue.waiting and resume_s < math.inf and not scheduled:
            self._wakes_s = resume_s
            self._call_later(resume_s - now_s, self._wake)

    def _wake(self) -> None:
        self._wakes_s = -1.0
        self._advance()


class _QueuedCall:
    """A call that waits in the queue, and is then charged there."""

    def __init__(
        self,
        client: QueuedClient,
        call_id: str,
        request: WorkerRequest,
        receiver: AnswerReceiver,
        send: Callable[[WorkerRequest, AnswerReceiver], SentCall],
    ) -> None:
        self._client, self._call_id = client, call_id
        self._request, self._receiver = request, receiver
        self._send = send
        self._sent: SentCall | None = None
        self._paused = self._ended = False
        self._bounds = request.usage_bounds
        self._charged_tokens = 0

    def go(self) -> None:
        """Send the call: it is next."""
        self._sent = self._send(self._request, self)
        if self._paused:
            self._sent.pause()

    # --- AnswerReceiver ---------------------------------------------------------------------------

    def started(self) -> None:
        """Pass it on."""
        self._receiver.started()

    def received(self, chunks: list[WorkerChunk]) -> None:
        """Charge the call for the output."""
        for chunk in chunks:
            total = chunk.reported_output(self._bounds)
            tokens = chunk.outputs if total is None else total - self._charged_tokens
            tokens = min(tokens, self._bounds.output_tokens - self._charged_tokens)
            if tokens > 0:
                self._charged_tokens += tokens
                self._client.queue.decoded(self._call_id, tokens)
        self._receiver.received(chunks)

    def ended(self) -> None:
        """Leave the queue."""
        self._leave()
        self._receiver.ended()

    def failed(self, error: WorkerError) -> None:
        """Leave the queue, which pauses if the server requested it."""
        if isinstance(error, WorkerUnavailableError):
            self._client.pause(error, self._request.tenant)
        self._leave()
        self._receiver.failed(error)

    # --- SentCall ---------------------------------------------------------------------------------

    @property
    def may_have_begun(self) -> bool:
        """Return whether it was sent, and the server may work on it."""
        return self._sent is not None and self._sent.may_have_begun

    def close(self) -> None:
        """Leave the queue; cancel the call if it was sent."""
        if self._sent is not None:
            self._sent.close()
        self._leave()

    def pause(self) -> None:
        """Receive nothing."""
        self._paused = True
        if self._sent is not None:
            self._sent.pause()

    def resume(self) -> None:
        """Receive again."""
        self._paused = False
        if self._sent is not None:
            self._sent.resume()

    def _leave(self) -> None:
        if not self._ended:
            self._ended = True
            self._client.end(self._call_id)
