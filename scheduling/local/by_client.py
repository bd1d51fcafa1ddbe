"""Schedulers that choose a client, then its earliest call, and stop at the first that does not fit.

VTC, LCF and DRR differ in the order of clients and in the charges; they share the queues, the ids
and the pull protocol. The bounds of the VTC paper depend on stopping instead of skipping the call
(Algorithm 2 lines 23-24): no call that fits overtakes the least served client.

Weakness: while that call waits for memory, calls that would fit wait, too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from fairserve.scheduling.base import LocalCall, PrefixCache
from fairserve.scheduling.local.client_queues import Entry


class ByClient(ABC):
    """Implementation of :class:`~fairserve.scheduling.base.LocalScheduler` over queues by client.

    A subclass attaches a :class:`ClientQueue` to each client and handles the events of a call. The
    next offer may be determined when a call is accepted; a call that arrives between that and
    ``peek`` is then considered after it.
    """

    def __init__(self) -> None:
        self._arrivals = 0
        self._entries: dict[str, Entry] = {}
        """Waiting and running calls by id."""
        self._waiting = 0
        self._offered: Entry | None = None
        self._stopped = False

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return self._waiting

    def add(self, call: LocalCall) -> None:
        """Queue a call. Raises ValueError for a known id, or a weight out of range."""
        if call.call_id in self._entries:
            raise ValueError(f"call {call.call_id!r} is already scheduled")
        if not 0 < call.weight < math.inf:
            raise ValueError(f"weight is {call.weight}; allowed: over 0, finite")
        self._arrivals += 1
        call.arrival = self._arrivals
        entry = self._entries[call.call_id] = Entry(call)
        self._waiting += 1
        self._enqueue(entry)

    def start_pass(self, cache: PrefixCache) -> None:
        """Begin a step."""
        self._offered = None
        self._stopped = False

    def peek(self) -> LocalCall | None:
        """Return the earliest call of the next client, unless one did not fit in this pass."""
        entry = self._offered
        if entry is not None:
            return entry.call
        if self._stopped or not self._waiting:
            return None
        self._offered = entry = self._choose()
        return entry.call

    @abstractmethod
    def accept(self, cached_tokens: int) -> None:
        """Run the peeked call."""

    def skip(self) -> None:
        """End the pass: no call overtakes the one that does not fit."""
        assert self._offered is not None, "skip follows a peek that offered a call"
        self._offered = None
        self._stopped = True

    def finish(self, call_id: str) -> None:
        """Remove a call that ended or was cancelled, waiting or running. KeyError if unknown."""
        entry = self._entries.pop(call_id)
        if not entry.waiting:
            self._ended(entry)
            return
        if entry is self._offered:
            self._offered = None
        self._waiting -= 1
        self._cancelled(entry)

    def requeue(self, call_id: str) -> None:
        """Requeue a preempted call at its old place."""
        entry = self._running(call_id)
        self._waiting += 1
        self._preempted(entry)

    def surplus(self, call_id: str) -> tuple[float, ...]:
        """Return the lead of a call's client over its siblings. KeyError if it is not running."""
        return self._surplus(self._running(call_id))

    def _running(self, call_id: str) -> Entry:
        """Return a running call. Raises KeyError if it is not running."""
        entry = self._entries[call_id]
        if entry.waiting:
            raise KeyError(call_id)
        return entry

    @abstractmethod
    def decoded(self, call_id: str, tokens: int) -> None:
        """Charge the tokens that a running call generated. Raises KeyError if it is not running."""

    @abstractmethod
    def _surplus(self, entry: Entry) -> tuple[float, ...]:
        """Return the lead of a running call's client, outermost level first."""

    @abstractmethod
    def _choose(self) -> Entry:
        """Return the call to offer; at least one call waits."""

    @abstractmethod
    def _enqueue(self, entry: Entry) -> None:
        """Add an arrived call to its client's queue."""

    @abstractmethod
    def _cancelled(self, entry: Entry) -> None:
        """Remove a waiting call from its client's queue."""

    @abstractmethod
    def _preempted(self, entry: Entry) -> None:
        """Return a preempted call to its client's queue."""

    @abstractmethod
    def _ended(self, entry: Entry) -> None:
        """Handle the end of a running call."""
