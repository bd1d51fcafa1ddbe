"""Decides whether an engine can add one more call to its batch.

Both tests know the output length of a call, as do engines whose clients send the true length as
``max_tokens``; no call is ever preempted. ``ReservedRoom`` reserves the whole output when a call
enters. ``FutureRoom`` is the test of the VTC paper's code: it looks ahead, since sequences that end
free their memory for those that still grow, and so admits more.

Tokens of calls outside the prefix cache are counted; the locked part of the cache is an argument of
each test. A *step* is a decode step of the whole batch, counted from 0.
"""

from __future__ import annotations

from bisect import insort
from typing import Protocol


class PoolRoom(Protocol):
    """The part of an engine's pool that is held by single calls."""

    def fits(self, held: int, left: int, samples: int, locked: int, step: int) -> bool:
        """Return whether a call that holds ``held`` tokens and has ``left`` steps left fits.

        ``locked``: tokens of the prefix cache that could not be evicted then.
        """
        ...

    def enter(self, call_id: str, held: int, left: int, samples: int, step: int) -> None:
        """Add a call at this step."""
        ...

    def shrink(self, call_id: str, tokens: int) -> None:
        """Move this many of a call's tokens to the prefix cache."""
        ...

    def leave(self, call_id: str) -> None:
        """Remove a call."""
        ...

    def for_cache(self) -> int:
        """Return the tokens that the prefix cache may occupy now, locked ones included."""
        ...


class ReservedRoom:
    """Reserves whole outputs. O(1)."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._reserved = 0
        self._own: dict[str, int] = {}

    def fits(self, held: int, left: int, samples: int, locked: int, step: int) -> bool:
        """Return whether one more call fits."""
        return self._reserved + held + left * samples + locked <= self._capacity

    def enter(self, call_id: str, held: int, left: int, samples: int, step: int) -> None:
        """Add a call at this step."""
        own = self._own[call_id] = held + left * samples
        self._reserved += own

    def shrink(self, call_id: str, tokens: int) -> None:
        """Move some of a call's tokens to the prefix cache."""
        self._own[call_id] -= tokens
        self._reserved -= tokens

    def leave(self, call_id: str) -> None:
        """Remove a call."""
        self._reserved -= self._own.pop(call_id)

    def for_cache(self) -> int:
        """Return the tokens that the prefix cache may occupy now."""
        return self._capacity - self._reserved


class FutureRoom:
    """Tests the future peak of the pool, without a prefix cache. O(batch).

    ``max over i of left_i * (i + 1) + sum of held_j for j <= i``, most left first, must be below the
    capacity (ALGORITHMS section 9).
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._batch: list[tuple[int, int, str]] = []
        """Entry of each sequence: its last step, negated, so that the order is constant; the tokens
        that it would have held at step 0; its call."""

    def fits(self, held: int, left: int, samples: int, locked: int, step: int) -> bool:
        """Return whether one more call fits."""
        added = [(-step - left, share - step, "") for share in _shares(held, samples)]
        total = 0
        for number, (end, base, _) in enumerate(sorted(self._batch + added), start=1):
            total += base + step
            if (-end - step) * number + total >= self._capacity:
                return False
        return True

    def enter(self, call_id: str, held: int, left: int, samples: int, step: int) -> None:
        """Add a call at this step."""
        for share in _shares(held, samples):
            insort(self._batch, (-step - left, share - step, call_id))

    def shrink(self, call_id: str, tokens: int) -> None:
        """Do nothing: there is no prefix cache to hold them."""

    def leave(self, call_id: str) -> None:
        """Remove a call."""
        self._batch = [entry for entry in self._batch if entry[2] != call_id]

    def for_cache(self) -> int:
        """Return 0: there is no prefix cache."""
        return 0


def _shares(held: int, samples: int) -> list[int]:
    """Return the tokens of each sample; the first one also holds the shared prompt."""
    return [held - samples + 1] + [1] * (samples - 1)
