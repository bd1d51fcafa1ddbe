"""A call that a gateway sends to its worker, and that counts there.

The gateway has the connection. So the call counts among the worker's sequences, in its circuit and in
its local queue from here, as a call of our own client does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.base import (
    WorkerRejectedError,
    WorkerRequest,
    WorkerUnavailableError,
)
from fairserve.platform.fleet.member import Member


class SentCall:
    """One attempt at one worker. Ends by :meth:`end`."""

    def __init__(self, member: Member, request: WorkerRequest, queue_id: str | None) -> None:
        """``queue_id`` is its id in the local queue of the worker, if there is one."""
        self.member = member
        self._request = request
        self._queue_id = queue_id
        self._queue = member.queue
        self._decoded_tokens = 0
        self._ended = False
        self.on_started: Callable[[], None] = lambda: None
        """Called once when the worker has started the call, or is assumed to."""
        self._carried = member.watched.carried(replace(request, on_started=self._started))

    @classmethod
    async def begin(cls, member: Member, request: WorkerRequest) -> SentCall:
        """Wait until the worker may get the call. Raises WorkerUnavailableError if it never may."""
        queue_id = None if member.queue is None else await member.queue.turn(request)
        return cls(member, request, queue_id)

    def body(self) -> dict[str, Any]:
        """Return the body for the worker."""
        return self.member.http.body_of(self._request)

    def was_sent(self) -> None:
        """Record that the gateway sends the call now, which starts one that reports no start."""
        if not self.member.http.reports_start(self._request):
            self._carried.started()

    def _started(self) -> None:
        self.on_started()

    def answering(self) -> None:
        """Record that the header of an answer of status 200 has arrived.

        It starts a call that had its turn in the local queue: its worker is assumed to queue nothing.
        """
        if self._queue_id is not None:
            self._carried.started()
        self._carried.began()

    def began(self) -> None:
        """Record that the first chunk of the answer has arrived."""
        self._carried.started()
        self._carried.began()

    def decoded(self, output_tokens: int) -> None:
        """Charge the call in the local queue for its output so far."""
        more = output_tokens - self._decoded_tokens
        if self._queue is not None and self._queue_id is not None and more > 0 and not self._ended:
            self._decoded_tokens = output_tokens
            self._queue.queue.decoded(self._queue_id, more)

    def shape(self) -> AnswerShape:
        """Return the checks of its answer."""
        return AnswerShape(self._request.path, self._request.sequences)

    @property
    def needs_done(self) -> bool:
        """True if the worker ends a complete stream with ``[DONE]``."""
        return self.member.http.dialect == "vllm"

    def failure(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> WorkerUnavailableError | WorkerRejectedError:
        """Return the error for an answer with another status than 200, and report it to the circuit.

        ``headers`` have lower-case names.
        """
        retry = {"Retry-After": headers.get("retry-after", "")}
        error = self.member.http.error_of_answer(status, retry, body)
        if isinstance(error, WorkerUnavailableError):
            self.failed(error)
        return error

    def failed(self, error: WorkerUnavailableError) -> None:
        """Report a call that did not begin. The local queue pauses if the worker requested it."""
        self._carried.failed(error)
        if self._queue is not None:
            self._queue.pause(error, self._request.tenant)

    def moved_to(self, member: Member) -> SentCall:
        """Return the call at another worker, to which the gateway has sent it. Ends this one."""
        self.end()
        moved = SentCall(member, self._request, None)
        moved.on_started = self.on_started
        return moved

    def end(self) -> None:
        """Count the call no more. May be repeated."""
        if self._ended:
            return
        self._ended = True
        self._carried.end()
        if self._queue is not None and self._queue_id is not None:
            self._queue.end(self._queue_id)
