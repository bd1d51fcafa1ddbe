"""Calls at one worker that may still wait in its queue.

vLLM sends nothing of a call that is not streamed before its end, so that its start is learned from the
number of waiting sequences in its metrics: of those that were sent and are not known as started, all
but that many have started. The first to be sent are assumed to be the first to start.

Weakness: a fair scheduler may start them in another order, and calls of other senders count as waiting,
too. The number of started calls is then right at the next reading, or too small until an answer ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Sent:
    sequences: int
    sent_s: float
    on_started: Callable[[], None] | None
    waits: bool = False
    """The last reading has found it waiting."""


class UnstartedCalls:
    """The calls, in the order in which they were sent. O(1) a call; O(calls) a reading."""

    def __init__(self) -> None:
        self._calls: dict[int, _Sent] = {}
        self._numbers = itertools.count(1)
        self._followed = 0

    @property
    def needed(self) -> bool:
        """True if a call waits whose start would be reported."""
        return self._followed > 0

    def add(self, sequences: int, now_s: float, on_started: Callable[[], None] | None) -> int:
        """Add a call that is being sent, and return its key.

        ``on_started`` is called at most once; None: the call reports its start by itself.
        """
        key = next(self._numbers)
        self._calls[key] = _Sent(sequences, now_s, on_started)
        self._followed += on_started is not None
        return key

    def start(self, key: int) -> None:
        """Report the start of a call that is not known as started."""
        call = self.remove(key)
        if call is not None and call.on_started is not None:
            call.on_started()

    def remove(self, key: int) -> _Sent | None:
        """Remove a call, which has started or ended."""
        call = self._calls.pop(key, None)
        if call is not None and call.on_started is not None:
            self._followed -= 1
        return call

    def waits(self, key: int) -> bool:
        """Return whether a call is known to wait. False for one that reports its start by itself.

        Nothing is read for the sake of such a call, so that what is known of it may be old.
        """
        call = self._calls.get(key)
        return call is not None and call.waits and call.on_started is not None

    def read(self, waiting: int, sent_until_s: float) -> None:
        """Start the first calls, as far as the worker has fewer waiting sequences than these.

        Calls sent after ``sent_until_s`` may not have reached its queue when ``waiting`` was counted.
        """
        settled = {key: call for key, call in self._calls.items() if call.sent_s <= sent_until_s}
        left = sum(call.sequences for call in settled.values()) - waiting
        for key, call in settled.items():
            left -= call.sequences
            call.waits = left < 0
            if not call.waits:
                self.start(key)
