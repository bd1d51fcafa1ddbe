"""Schedulers that choose a client, then its earliest call, and stop at the first that does not fit.

VTC, LCF and DRR differ in who is next and in what is charged; the queues, the ids and the pull protocol
are the same and stand here. To stop, instead of passing over the call, is what the bounds of the VTC
paper rest on (Algorithm 2 lines 23-24): the least served client is not overtaken by whoever fits.

Weakness: while that call waits for room, calls that would fit wait, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.local.client_queues import ClientQueues


class ByClient(ABC):
    """The protocol of :class:`~fairserve.scheduling.base.LocalScheduler` over queues by client.

    A subclass is told about every call after it has moved: ``_queued``, ``_cancelled``,
    ``_started``, ``_preempted``, ``_ended``.
    """

    def __init__(self) -> None:
        self._arrivals = 0
        self._queues = ClientQueues()
        self._running: dict[str, LocalCall] = {}
        self._offered: LocalCall | None = None
        self._stopped = False

    def __len__(self) -> int:
        """Number of waiting calls."""
        return len(self._queues)

    def add(self, call: LocalCall) -> None:
        """A call arrives. Raises ValueError for an id that is here, or a weight out of range."""
        if call.call_id in self._queues or call.call_id in self._running:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        if not 0 < call.weight < math.inf:
            raise ValueError(f"weight is {call.weight}; allowed: over 0, finite")
        self._arrivals += 1
        call.arrival = self._arrivals
        self._queues.add(call)
        self._queued(call)

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step."""
        self._offered = None
        self._stopped = False

    def peek(self) -> LocalCall | None:
        """The earliest call of the client who is next, unless one did not fit in this pass."""
        if self._offered is None and not self._stopped and len(self._queues):
            self._offered = self._queues.earliest(self._next_client())
        return self._offered

    def accept(self, cached_tokens: int) -> None:
        """The peeked call runs."""
        call = self._offered
        assert call is not None, "accept follows a peek that offered a call"
        self._offered = None
        self._queues.remove(call.call_id)
        self._running[call.call_id] = call
        self._started(call, cached_tokens)

    def skip(self) -> None:
        """End the pass: nobody overtakes."""
        assert self._offered is not None, "skip follows a peek that offered a call"
        self._offered = None
        self._stopped = True

    def finish(self, call_id: str) -> None:
        """A call ended or was cancelled, waiting or running. Raises KeyError if unknown."""
        call = self._running.pop(call_id, None)
        if call is not None:
            self._ended(call)
            return
        call = self._queues.remove(call_id)
        if call is self._offered:
            self._offered = None
        self._cancelled(call)

    def requeue(self, call_id: str) -> None:
        """A running call was preempted: it waits again, at its old place."""
        call = self._running.pop(call_id)
        self._queues.add(call)
        self._preempted(call)

    @abstractmethod
    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge what a running call generated. Raises KeyError if it does not run."""

    @abstractmethod
    def _next_client(self) -> str:
        """Whose call is offered; at least one client has one waiting."""

    @abstractmethod
    def _queued(self, call: LocalCall) -> None:
        """It arrived."""

    @abstractmethod
    def _cancelled(self, call: LocalCall) -> None:
        """It left the queue without running."""

    @abstractmethod
    def _started(self, call: LocalCall, cached_tokens: int) -> None:
        """It was selected."""

    @abstractmethod
    def _preempted(self, call: LocalCall) -> None:
        """It returned from the batch to the queue."""

    @abstractmethod
    def _ended(self, call: LocalCall) -> None:
        """It left the batch for good."""
