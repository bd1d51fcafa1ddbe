"""Events of one worker's response, parsed as they arrive.

The response is complete when ``[DONE]`` follows a ``finish_reason`` for every choice that was
begun. Some servers end the stream normally after they aborted a call (llama-cpp-python's, in which
a new call interrupts the running one): that is a broken response, not a short one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import aiohttp

from fairserve.engine.wire.base import (
    FailureCause,
    WorkerChunk,
    WorkerRejectedError,
    WorkerStreamError,
    WorkerUnavailableError,
)
from fairserve.engine.wire.loop_turns import TURN_BYTES, LoopTurns
from fairserve.engine.wire.stream_events import StreamEvents
from fairserve.engine.wire.upstream_message import is_about_our_account, public_message


class HttpWorkerStream:
    """Chunks of a response of status 200; see :class:`fairserve.engine.wire.base.WorkerStream`."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        private: Collection[str] = (),
        *,
        turns: LoopTurns,
        tenant: str,
    ) -> None:
        """Read ``response``; ``private`` are texts to remove from errors that a client sees.

        The stream takes the ``turns`` of its ``tenant``.
        """
        self._response = response
        self._turns, self._tenant = turns, tenant
        self._turn_bytes = 0
        """Bytes of events that were worked off in this turn."""
        self._private = private
        self._content = response.content
        self._events = StreamEvents()
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
                raise self._broken(describe(failure)) from failure
            if not received:
                raise self._broken("the connection ended without [DONE]")
            try:
                self._whole.extend(self._events.feed(received))
            except WorkerStreamError as error:
                raise self._broken(str(error)) from error
        event = self._whole.popleft()
        self._turn_bytes += len(event)
        if self._turn_bytes > TURN_BYTES:
            self._turn_bytes = len(event)
            await self._turns.next(self._tenant)
        try:
            data = self._events.read(event)
        except WorkerRejectedError:
            self._response.close()
            raise
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

    def _broken(
        self, why: str, cause: FailureCause = "silent", message: str = ""
    ) -> WorkerStreamError | WorkerUnavailableError:
        """Close the stream and return its error; ``message`` is the worker's own if it sent one."""
        self._response.close()
        if is_about_our_account(message):
            cause, message = "unknown", ""
        client_message = public_message(message, self._private)
        error = WorkerStreamError if self._begun else WorkerUnavailableError
        return error(why, cause=cause, client_message=client_message)


def describe(failure: BaseException) -> str:
    """Return an exception as one line for a log."""
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
