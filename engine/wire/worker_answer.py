"""One worker's answer as its bytes arrive: an error, events, or one object.

Events are worked off in turns (:mod:`fairserve.engine.wire.loop_turns`). A streamed answer is complete
when ``[DONE]`` follows a ``finish_reason`` for every choice that was begun; that of a plain OpenAI
server also when it ends after them. Some servers end the stream normally after they aborted a call
(llama-cpp-python's, in which a new call interrupts the running one): that is a broken answer, not a
short one.

Weakness: an answer that is one object is in memory, and parsing it holds the interpreter: on two busy
cores 0.2 s for 10 MB of numbers, half of that for base64.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.base import (
    AnswerReceiver,
    Exchange,
    FailureCause,
    WorkerChunk,
    WorkerError,
    WorkerRejectedError,
    WorkerRequest,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.loop_turns import EVENT_BYTES, TURN_BYTES, LoopTurns
from fairserve.engine.wire.stream_events import StreamEvents, raise_reported
from fairserve.engine.wire.upstream_message import public_message, public_rejection
from fairserve.engine.wire.worker_json import parse_object

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer, such as 2,048 vectors of 1,500 numbers."""
MAX_TOKEN_BYTES = 8 * 1024
"""Bytes of a streamed answer for each token of its call, besides that size: 20 log probabilities fit."""
MAX_BACKLOG_BYTES = 128 * 1024
"""Bytes of whole events that wait for their turn, and ``EVENT_BYTES`` for each; with more, the
connection is not read."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes of an error that are read."""
_NO_SUCH_PATH = frozenset({405, 501})
"""Statuses, besides 404, of a server that does not serve a path."""


class AnsweringServer(Protocol):
    """The server of an answer, as far as its reader needs it."""

    @property
    def private(self) -> tuple[str, ...]:
        """Return the texts that are removed from the worker's errors before a client sees them."""
        ...

    @property
    def needs_done(self) -> bool:
        """Return whether the server ends a complete stream with ``[DONE]``."""
        ...

    @property
    def reports_admission(self) -> bool:
        """Return whether the server reports every call when it enters the batch."""
        ...

    @property
    def counts_samples_apart(self) -> bool:
        """Return whether the running usage of a chunk counts the output of its sample alone."""
        ...

    def reports_start(self, request: WorkerRequest) -> bool:
        """Return whether the server reports a call before its answer."""
        ...

    def error_of_answer(
        self, status: int, headers: Mapping[str, str], body: bytes
    ) -> WorkerUnavailableError | WorkerRejectedError:
        """Return the error for an answer with a status other than 200."""
        ...


class WorkerAnswer:
    """Reads one answer for its receiver; also the call that was sent, for whoever sent it."""

    def __init__(
        self,
        server: AnsweringServer,
        request: WorkerRequest,
        receiver: AnswerReceiver,
        turns: LoopTurns | None,
        begin_s: float | None,
    ) -> None:
        """Without ``turns`` all that arrives is worked off at once.

        ``begin_s``: seconds without the head of a stream, or without an answer to a pooling call.
        """
        self.exchange: Exchange | None = None
        self._server, self._request = server, request
        self._streams = streams = request.streams
        self._reports_start = server.reports_start(request)
        self._receiver: AnswerReceiver | None = receiver
        self._turns = turns
        self._within_s = begin_s if streams or not request.generates else None
        self._timer: asyncio.TimerHandle | None = None
        if self._within_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._within_s, self._overdue)
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()
        outputs = request.usage_bounds.output_tokens if streams else 0
        self._most_bytes = MAX_ANSWER_BYTES + MAX_TOKEN_BYTES * outputs
        self._bytes = 0
        self._shape = AnswerShape(request.path, request.sequences)
        self._events: StreamEvents | None = None
        """Reads a streamed answer."""
        self._backlog: deque[bytes] = deque()
        """Events that have arrived."""
        self._backlog_bytes = 0
        self._turn: asyncio.Future[None] | None = None
        self._paused = False
        self._starts_when_sent = not self._reports_start
        self._begun = False
        self._has_ended = False
        self._loss = ""
        """Why the connection was lost while events were left."""

    def was_sent(self) -> None:
        """Report the start of a call whose server reports nothing before its answer. Once."""
        if self._starts_when_sent:
            self._starts_when_sent = False
            if self._receiver is not None:
                self._receiver.started()

    # --- the connection ---------------------------------------------------------------------------

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head of the answer."""
        self.was_sent()
        self._status, self._headers = status, headers
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            self._fail(
                self._broken(f"its answer has the coding {coding[:40]}, which nobody accepts")
            )
        elif status == 200 and self._streams:
            self._stop_timer()
            request = self._request
            apart = self._server.counts_samples_apart and request.sequences > 1
            self._events = StreamEvents(self._shape, request.max_output_tokens if apart else None)
        elif status == 200 and self._reports_start:
            assert self._receiver is not None
            self._receiver.started()

    def data(self, data: bytes) -> None:
        """Take a part of the body."""
        if self._receiver is None:
            return
        self._bytes += len(data)
        if self._bytes > self._most_bytes:
            text = f"its answer is longer than {self._most_bytes} bytes"
            self._fail(self._broken(text, "failed", text))
            return
        if self._events is not None:
            try:
                events = self._events.feed(data)
            except WorkerStreamError as error:
                self._fail(self._broken(str(error), error.cause, error.client_message))
                return
            self._take_events(events)
            if self._turn is None and not self._paused:
                self._work()
            self._read_or_wait()
            return
        self._body += data
        if self._status != 200 and len(self._body) >= MAX_ERROR_BYTES:
            self.end()

    def _take_events(self, events: list[bytes]) -> None:
        self._backlog.extend(events)
        self._backlog_bytes += sum(map(len, events)) + EVENT_BYTES * len(events)

    def end(self) -> None:
        """Take the end of the body."""
        if self._receiver is None:
            return
        self._has_ended = True
        if self._events is not None:
            if self._loss == "":
                self._take_events(self._events.flush())
            if self._turn is None and not self._paused:
                self._work()
        elif self._status == 200:
            self._read_whole(bytes(self._body))
        else:
            status, body = self._status, bytes(self._body[:MAX_ERROR_BYTES])
            if not self._request.generates and status in _NO_SUCH_PATH:
                status = 404
            self._fail(self._server.error_of_answer(status, self._headers, body))

    def lost(self, why: str, *, unreachable: bool) -> None:
        """Take the loss of the connection. Events that arrived before it are worked off first."""
        self.was_sent()
        if self._events is not None and not unreachable:
            self._loss = why
            self.end()
        elif unreachable:
            self._fail(WorkerUnavailableError(why, unreachable=True))
        else:
            self._fail(self._broken(why))

    def _overdue(self) -> None:
        self._timer = None
        what = "no answer within" if not self._status else "its answer took over"
        self._fail(self._broken(f"{what} {self._within_s:g} s"))

    # --- events -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Work off the events of one turn, and ask for the next one if some are left."""
        self._turn = None
        if self._receiver is None or self._paused:
            return
        chunks: list[WorkerChunk] = []
        error: WorkerError | None = None
        left_bytes, done = math.inf if self._turns is None else TURN_BYTES, False
        events = self._events
        assert events is not None
        try:
            while self._backlog and left_bytes > 0 and not done:
                event = self._backlog.popleft()
                left_bytes -= len(event) + EVENT_BYTES
                self._backlog_bytes -= len(event) + EVENT_BYTES
                chunk = events.read(event)
                if chunk is None:
                    done = True
                else:
                    chunks.append(chunk)
        except WorkerRejectedError as rejected:
            error = public_rejection(rejected, self._server.private)
        except WorkerStreamError as broken:
            self._begun = self._begun or bool(chunks)
            error = self._broken(str(broken), broken.cause, broken.client_message)
        if chunks:
            self._begun = True
            self._receiver.received(chunks)
            if self._receiver is None:  # closed by its receiver
                return
        if error is not None:
            self._fail(error)
        elif done:
            self._end()
        elif self._has_ended and not self._backlog:
            why = self._loss or "the connection ended without [DONE]"
            if events.is_complete(needs_done=self._server.needs_done):
                self._end()
            else:
                self._fail(self._broken(why))
        else:
            if self._backlog:
                self._work_later()
            self._read_or_wait()

    def _end(self) -> None:
        receiver = self._leave()
        if self.exchange is not None:
            self.exchange.expect_end()
        if receiver is not None:
            receiver.ended()

    # --- one object -------------------------------------------------------------------------------

    def _read_whole(self, body: bytes) -> None:
        try:
            data = read_whole(body, self._shape)
        except WorkerRejectedError as error:
            self._fail(public_rejection(error, self._server.private))
        except WorkerStreamError as error:
            self._fail(self._broken(str(error), error.cause, error.client_message))
        else:
            receiver = self._receiver
            assert receiver is not None
            receiver.received([WorkerChunk(data)])
            if self._receiver is not None:
                self._end()

    # --- the end ----------------------------------------------------------------------------------

    @property
    def may_have_begun(self) -> bool:
        """See :class:`~fairserve.engine.wire.base.SentCall`."""
        return not self._server.reports_admission

    def close(self) -> None:
        """See :class:`~fairserve.engine.wire.base.SentCall`."""
        if self._leave() is not None and self.exchange is not None:
            self.exchange.close()

    def pause(self) -> None:
        """See :class:`~fairserve.engine.wire.base.SentCall`."""
        self._paused = True
        self._read_or_wait()

    def _read_or_wait(self) -> None:
        """Read on, unless the receiver lags, or much has arrived that waits for its turn."""
        if self.exchange is None:
            return
        if self._paused or self._backlog_bytes > MAX_BACKLOG_BYTES:
            self.exchange.pause()
        else:
            self.exchange.resume()

    def resume(self) -> None:
        """See :class:`~fairserve.engine.wire.base.SentCall`."""
        self._paused = False
        self._read_or_wait()
        if self._events is not None and self._turn is None and (self._backlog or self._has_ended):
            self._work_later()

    def _work_later(self) -> None:
        if self._turns is None:
            self._work()
            return
        self._turn = self._turns.turn(self._request.tenant)
        self._turn.add_done_callback(lambda turn: None if turn.cancelled() else self._work())

    def _leave(self) -> AnswerReceiver | None:
        """Call the receiver no more; return it."""
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return None
        self._stop_timer()
        if self._turn is not None:
            self._turn.cancel()
        self._backlog.clear()
        return receiver

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: WorkerError) -> None:
        receiver = self._leave()
        if self.exchange is not None:
            self.exchange.close()
        if receiver is not None:
            receiver.failed(error)

    def _broken(
        self, why: str, cause: FailureCause = "silent", message: str = ""
    ) -> WorkerStreamError | WorkerUnavailableError:
        """Return the error of a broken answer; ``message`` is the worker's own if it sent one."""
        client_message = public_message(message, self._server.private)
        error = WorkerStreamError if self._begun else WorkerUnavailableError
        return error(why, cause=cause, client_message=client_message)


def read_whole(body: bytes, shape: AnswerShape) -> dict[str, Any]:
    """Return the checked answer. Raises WorkerStreamError or WorkerRejectedError."""
    data = parse_object(body, "its answer")
    raise_reported(data)
    shape.check_whole(data)
    return data
