"""The wait of a placed call until its worker may get it.

A worker without our scheduler has a local queue in this process: the call is sent when it is next
there. Until then it renews its lease, and a worker that is lost costs it only its place: control
grants another worker, as it does where the relay's attempt fails. A worker without a local queue gets
its calls at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fairserve.engine.wire.base import WorkerUnavailableError
from fairserve.interactions.call import NO_USAGE
from fairserve.platform.control.messages import Grant
from fairserve.platform.serving.decision.placement import AttemptFailure, Placement, Used

LEFT = "client disconnected"
T = TypeVar("T")


class Turn:
    """The wait of one call. Cost: a timer, and one more for each quarter of a lease."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[Any] | None = None

    async def wait(self, begin: Callable[[Grant], Awaitable[T]]) -> T:
        """Return the result of ``begin``, which waits until the worker of the grant may get the call.

        If it raises WorkerUnavailableError, control grants another worker, and it is called again.
        Raises a FairServeError if the call has ended. Cancelling the task withdraws the call.
        """
        while True:
            try:
                return await self._attempt(begin)
            except WorkerUnavailableError as error:
                failure = AttemptFailure(str(error), error.cause, worker_lost=True)
                rejection = await self._placement.failed(failure, Used())
                if rejection is not None:
                    raise rejection.error from error

    def stop(self) -> None:
        """End the wait of a call that control has stopped. No effect if it does not wait."""
        task, self._waiting = self._waiting, None  # it is cancelled once
        if task is not None:
            task.cancel()

    async def _attempt(self, begin: Callable[[Grant], Awaitable[T]]) -> T:
        placement = self._placement
        if placement.stopped is not None:
            raise WorkerUnavailableError("stopped before it began")
        task = self._waiting = asyncio.current_task()
        self._renew_later()
        try:
            return await begin(placement.grant)
        except asyncio.CancelledError:
            if placement.stopped is not None:
                assert task is not None
                task.uncancel()
                raise WorkerUnavailableError("stopped before it was sent") from None
            await placement.end("cancelled", Used(), error=LEFT)  # does not suspend
            raise
        finally:
            self._waiting = None
            self._timer.cancel()

    def _renew_later(self) -> None:
        self._timer = self._loop.call_later(self._placement.grant.lease_s / 4, self._renew)

    def _renew(self) -> None:
        self._renew_later()
        if not self._placement.progress(NO_USAGE, started=False, cached_tokens_reported=False):
            self.stop()
