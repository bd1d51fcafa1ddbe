"""Events of one worker's response, parsed as they arrive.

The response is complete when ``[DONE]`` follows a ``finish_reason`` for every choice that was
begun; that of a plain OpenAI server also when it ends after them. Some servers end the stream normally
after they aborted a call (llama-cpp-python's, in which a new call interrupts the running one): that is
a broken response, not a short one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import aiohttp

from fairserve.engine.wire.answer_shape import AnswerShape
from fairserve.engine.wire.base import (
    FailureCause,
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.loop_turns import EVENT_BYTES, TURN_BYTES, LoopTurns
from fairserve.engine.wire.stream_events import StreamEvents
from fairserve.engine.wire.upstream_message import public_message, public_rejection


class HttpWorkerStream:
    """Chunks of a response of status 200; see :class:`fairserve.engine.wire.base.WorkerStream`."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        shape: AnswerShape,
        private: Collection[str] = (),
        *,
        needs_done: bool = True,
        turns: LoopTurns,
        tenant: str,
    ) -> None:
        """Read ``response``; ``private`` are texts to remove from errors that a client sees.

        Without ``needs_done`` an answer whose choices have all ended may end without ``[DONE]``. The
        stream takes the ``turns`` of its ``tenant``.
        """
        self._response = response
        self._turns, self._tenant = turns, tenant
        self._turn_bytes = 0
        """Bytes of events that were worked off in this turn."""
        self._private = private
        self._needs_done = needs_done
        self._content = response.content
        self._events = StreamEvents(shape)
        self._whole: deque[bytes] = deque()
        """Events that have arrived."""
        self._begun = False

    def __aiter__(self) -> HttpWorkerStream:
        return self

    async def __anext__(self) -> WorkerChunk:
        while not self._whole:
            try:
                received = await self._content.readany()
            except (aiohttp.ClientError, TimeoutError, OSError) as failure:
                self._end_without_done(describe(failure))
                raise StopAsyncIteration from failure
            try:
                self._whole.extend(
                    self._events.feed(received) if received else self._events.flush()
                )
            except WorkerStreamError as error:
                raise self._broken(str(error), error.cause, error.client_message) from error
            if not received and not self._whole:
                self._end_without_done("the connection ended without [DONE]")
                raise StopAsyncIteration
        event = self._whole.popleft()
        counted_bytes = len(event) + EVENT_BYTES
        self._turn_bytes += counted_bytes
        if self._turn_bytes > TURN_BYTES:
            self._turn_bytes = counted_bytes
            await self._turns.next(self._tenant)
        try:
            data = self._events.read(event)
        except WorkerRejectedError as error:
            self._response.close()
            raise public_rejection(error, self._private) from error
        except WorkerStreamError as error:
            raise self._broken(str(error), error.cause, error.client_message) from error
        if data is None:
            # Returned to the pool only after its end: a worker that sends more is faulty.
            self._response.release()
            raise StopAsyncIteration
        self._begun = True
        return WorkerChunk(data)

    def close(self) -> None:
        """Close the connection, which cancels the call if it still runs."""
        self._response.close()

    def _end_without_done(self, why: str) -> None:
        """Close the stream; raise its error unless the answer is complete as it is."""
        if not self._events.is_complete(needs_done=self._needs_done):
            raise self._broken(why)
        self._response.close()

    def _broken(
        self, why: str, cause: FailureCause = "silent", message: str = ""
    ) -> WorkerStreamError | WorkerUnavailableError:
        """Close the stream and return its error; ``message`` is the worker's own if it sent one."""
        self._response.close()
        client_message = public_message(message, self._private)
        error = WorkerStreamError if self._begun else WorkerUnavailableError
        return error(why, cause=cause, client_message=client_message)


def describe(failure: BaseException) -> str:
    """Return an exception as one line for a log."""
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
