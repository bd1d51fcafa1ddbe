"""Room of one worker for background calls, which must not delay the others.

A worker cannot stop a call to make room. So a background call counts with all that it can hold, its
prompt and its largest output, from its dispatch to its end. A worker gets one only while no call
waits there, and all background calls together then hold at most

- ``window`` of the worker's KV capacity and of its slots (the sequences that it runs at a time), and
- what is left beside the most that the other calls held in the last one to two ``PEAK_S``.

Bound. Whatever background calls generate, the other calls of a worker find half of its cache and
slots free for them (with ``window`` 0.5), and at least the most that they held in the last half minute.
Within that an arriving call waits for no slot and no cache of a background call; it shares the
passes with those that run, and waits for the prompts of two at most, one that waits and one that
began before.

Cost: O(1) per call. Weakness: a load that rises beyond half of a worker, and beyond its peak of the
last half minute, waits for the ends of background calls. Calls of other senders have tokens here,
but no slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairserve.interactions.call import Call, size_range

PEAK_S = 30.0
"""Seconds of a period over which the peak of the other calls is kept, with that of the one before."""

Room = tuple[int, int]
"""Tokens of KV cache, and sequences."""


@dataclass(slots=True)
class BackgroundRoom:
    """Background calls of a worker, and the room for more. Changed by the worker's table only."""

    capacity_tokens: int
    slots: int | None
    """Sequences that the worker runs at a time; None if unknown, then twice ``most_calls``."""
    window: float
    most_calls: int
    """Most background calls at a time."""
    calls: int = 0
    """Background calls at the worker."""
    waiting: int = 0
    """Those that have not started."""
    tokens: int = 0
    """Prompt + largest output tokens of its background calls."""
    sequences: int = 0
    peak_tokens: int = 0
    """Most tokens that the other calls held in this period."""
    peak_sequences: int = 0
    last_peak_tokens: int = 0
    """Most tokens that they held in the period before."""
    last_peak_sequences: int = 0

    def add(self, tokens: int, sequences: int) -> None:
        """Add a call that was dispatched to the worker."""
        self.calls += 1
        self.waiting += 1
        self.tokens += tokens
        self.sequences += sequences

    def start(self) -> None:
        """Count one of its waiting calls as started."""
        self.waiting -= 1

    def remove(self, tokens: int, sequences: int) -> None:
        """Remove a call that has started, at its end."""
        self.calls -= 1
        self.tokens -= tokens
        self.sequences -= sequences

    def others(self, tokens: int, sequences: int) -> None:
        """Record what the other calls of the worker hold now."""
        if tokens > self.peak_tokens:
            self.peak_tokens = tokens
        if sequences > self.peak_sequences:
            self.peak_sequences = sequences

    def next_period(self, tokens: int, sequences: int) -> None:
        """Begin a period in which the other calls hold this much so far."""
        self.last_peak_tokens, self.last_peak_sequences = self.peak_tokens, self.peak_sequences
        self.peak_tokens, self.peak_sequences = tokens, sequences

    def whole(self) -> Room:
        """Return what all background calls together may hold while no other call is there."""
        slots = self.slots or 2 * self.most_calls
        return int(self.window * self.capacity_tokens), int(self.window * slots)

    def left(self) -> Room:
        """Return what all background calls together may hold now."""
        slots = self.slots or 2 * self.most_calls
        tokens, sequences = self.whole()
        return (
            min(tokens, self.capacity_tokens - max(self.peak_tokens, self.last_peak_tokens)),
            min(sequences, slots - max(self.peak_sequences, self.last_peak_sequences)),
        )

    def fits(self, tokens: int, sequences: int) -> bool:
        """Return whether a call that can hold this much may be added now."""
        if self.waiting or self.calls >= self.most_calls:
            return False
        most_tokens, most_sequences = self.left()
        return self.tokens + tokens <= most_tokens and self.sequences + sequences <= most_sequences

    def may_fit(self, size: int, sequences: int) -> bool:
        """Return whether calls of a size class fit beside the other calls and no background call.

        The tokens are rounded up to those of the class, by at most a ninth, except where the other
        calls leave the most that background calls may ever hold.
        """
        least_tokens, most_tokens = size_range(size)
        tokens, most_sequences = self.left()
        if sequences > most_sequences:
            return False
        return most_tokens <= tokens or least_tokens <= tokens == self.whole()[0]


def fits_any(call: Call, rooms: Iterable[Room]) -> bool:
    """Return whether one of the rooms is large enough for a call."""
    return any(
        call.most_tokens <= tokens and call.samples <= sequences for tokens, sequences in rooms
    )


def largest(rooms: Iterable[Room]) -> list[Room]:
    """Return the rooms that no other one exceeds."""
    found: list[Room] = []
    for room in sorted(set(rooms), reverse=True):
        if not found or room[1] > found[-1][1]:
            found.append(room)
    return found
