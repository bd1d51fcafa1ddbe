"""Places that owners, such as tenants, take in turns: a flood of one delays the others by one turn.

The owner that has waited longest gets the next free place
(:class:`~fairserve.interactions.rotation.Rotation`). An owner that has its share of the places waits
until it releases one. O(1) per place, as long as few owners can hold their whole share.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from fairserve.interactions.rotation import Rotation


class Turns:
    """Belongs to one event loop."""

    def __init__(self, places: int, of_owner: int | None = None) -> None:
        """``of_owner`` is the largest number of places that one owner has; None: all."""
        self._free = places
        self._of_owner = places if of_owner is None else of_owner
        self._taken: Counter[str] = Counter()
        self._waiting: Rotation[asyncio.Future[None]] = Rotation()

    async def take(self, owner: str) -> None:
        """Wait for the owner's turn and take a place. A cancelled waiter takes none."""
        if self._free and self._taken[owner] < self._of_owner and owner not in self._waiting:
            self._grant(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.add(owner, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(owner)  # it had just been granted
            raise

    def release(self, owner: str) -> None:
        """Free a place, and give it to the next owner."""
        self._free += 1
        self._taken[owner] -= 1
        if not self._taken[owner]:
            del self._taken[owner]
        while self._free and self._give():
            pass

    def _grant(self, owner: str) -> None:
        self._free -= 1
        self._taken[owner] += 1

    def _give(self) -> bool:
        """Give a free place to the first owner in turn that has not its share."""
        ready = (each for each in self._waiting if self._taken[each] < self._of_owner)
        owner = next(ready, None)
        if owner is None:
            return False
        turn = self._waiting.pop(owner)
        if not turn.done():
            self._grant(owner)
            turn.set_result(None)
        return True
