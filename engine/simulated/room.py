"""What fits: whether an engine may take one more call into its batch.

Both tests know how much a call will generate, as engines do whose clients give the true length as
``max_tokens``; nothing is ever preempted. ``ReservedRoom`` reserves the whole output when a call enters.
``FutureRoom`` is the test of the VTC paper's code: it looks ahead, since sequences that end leave their
place to those that still grow, and so admits more.

Counted is what calls hold beyond the prefix cache; what of the cache cannot be evicted is given with
each question. A *step* is a decode step of the whole batch, numbered from the first.
"""

from __future__ import annotations

from bisect import insort
from typing import Protocol


class Room(Protocol):
    """The part of an engine's pool that belongs to single calls."""

    def fits(self, held: int, left: int, samples: int, locked: int, step: int) -> bool:
        """Whether one more call fits that holds so many tokens and has so many steps left.

        ``locked``: tokens of the prefix cache that could not be evicted then.
        """
        ...

    def enter(self, call_id: str, held: int, left: int, samples: int, step: int) -> None:
        """It enters at this step."""
        ...

    def shrink(self, call_id: str, tokens: int) -> None:
        """So many of the tokens that it holds are in the prefix cache now."""
        ...

    def leave(self, call_id: str) -> None:
        """It ended."""
        ...

    def for_cache(self) -> int:
        """Tokens that the prefix cache may occupy now, locked ones included."""
        ...


class ReservedRoom:
    """O(1) per question."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._reserved = 0
        self._own: dict[str, int] = {}

    def fits(self, held: int, left: int, samples: int, locked: int, step: int) -> bool:
        """See the protocol."""
        return self._reserved + held + left * samples + locked <= self._capacity

    def enter(self, call_id: str, held: int, left: int, samples: int, step: int) -> None:
        """See the protocol."""
        own = self._own[call_id] = held + left * samples
        self._reserved += own

    def shrink(self, call_id: str, tokens: int) -> None:
        """See the protocol."""
        self._own[call_id] -= tokens
        self._reserved -= tokens

    def leave(self, call_id: str) -> None:
        """See the protocol."""
        self._reserved -= self._own.pop(call_id)

    def for_cache(self) -> int:
        """See the protocol."""
        return self._capacity - self._reserved


class FutureRoom:
    """``max over i of left_i * (i + 1) + sum of held_j for j <= i``, by the most left first, stays
    below the capacity (ALGORITHMS section 9). There is no prefix cache. O(batch) per question.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._batch: list[tuple[int, int, str]] = []
        """A sequence each: the last step as a negative number, so that the order never changes; what it
        would have held at step 0; the call."""

    def fits(self, held: int, left: int, samples: int, locked: int, step: int) -> bool:
        """See the protocol."""
        added = [(-step - left, share - step, "") for share in _shares(held, samples)]
        total = 0
        for number, (end, base, _) in enumerate(sorted(self._batch + added), start=1):
            total += base + step
            if (-end - step) * number + total >= self._capacity:
                return False
        return True

    def enter(self, call_id: str, held: int, left: int, samples: int, step: int) -> None:
        """See the protocol."""
        for share in _shares(held, samples):
            insort(self._batch, (-step - left, share - step, call_id))

    def shrink(self, call_id: str, tokens: int) -> None:
        """Nothing: there is no prefix cache that could hold them."""

    def leave(self, call_id: str) -> None:
        """See the protocol."""
        self._batch = [entry for entry in self._batch if entry[2] != call_id]

    def for_cache(self) -> int:
        """Nothing."""
        return 0


def _shares(held: int, samples: int) -> list[int]:
    """What each sample holds: the first one the shared prompt, too."""
    return [held - samples + 1] + [1] * (samples - 1)
