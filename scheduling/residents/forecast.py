"""The most memory that the runs at a worker will need together.

A run grows until its last call, and then leaves all that it holds. So the need is greatest when some run
makes its last call: if it has ``n`` further calls, those with at least as many have made ``n`` of theirs
by then, and those with fewer have left. To reserve the growth of each run would leave much of a cache
unused while runs are at different stages; to reserve a part of it is too little where they are at the
same. The Past-Future scheduler (ASPLOS 2025) forecasts the outputs of running calls in this way.

Runs are counted in classes of further calls, four for each doubling. It is assumed that runs proceed
alike, and that a run that leaves has as large a part of its prompts for itself as all have.

Cost: O(1) to add or remove a run; O(classes) for the most.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass

_CLASSES = 4


@dataclass(slots=True)
class _Class:
    calls: float
    """Further calls of each run."""
    runs: int = 0
    tokens: int = 0
    """Prompts of the runs."""
    growth: int = 0
    """Tokens by which the runs will have grown at their last call."""


class Forecast:
    """Runs at one worker."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._by_end: list[int] = []
        """Classes with runs, those that end first in front."""
        self._tokens = 0

    def count(self, sign: int, tokens: int, growth: int, further_calls: float) -> None:
        """Add a run that holds so many tokens, and will hold ``growth`` more after its further calls.

        With the ``sign`` -1, remove a run that was added with these figures.
        """
        key = round(_CLASSES * math.log2(1.0 + further_calls))
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = _Class(2.0 ** (key / _CLASSES) - 1.0)
            insort(self._by_end, key)
        found.runs += sign
        found.tokens += sign * tokens
        found.growth += sign * growth
        self._tokens += sign * tokens
        if not found.runs:
            del self._classes[key]
            self._by_end.remove(key)

    def most(self, held_tokens: int) -> float:
        """Return the most tokens needed, if what all hold now is this many, shared tokens once."""
        own = min(1.0, held_tokens / self._tokens) if self._tokens else 1.0
        most = left = float(held_tokens)
        by_end = [self._classes[each] for each in self._by_end]
        per_call = 0.0
        for each in by_end:
            if each.calls:
                per_call += each.growth / each.calls
        for each in by_end:
            need = left + each.calls * per_call
            if need > most:
                most = need
            left -= own * each.tokens
            if each.calls:
                per_call -= each.growth / each.calls
        return most
