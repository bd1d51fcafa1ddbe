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
from dataclasses import dataclass

_CLASSES = 4


@dataclass(slots=True)
class _Class:
    runs: int = 0
    tokens: int = 0
    """Prompts of the runs."""
    growth: int = 0
    """Tokens by which the runs will have grown at their last call."""


class Forecast:
    """Runs at one worker."""

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._tokens = 0

    def add(self, tokens: int, growth: int, further_calls: float) -> None:
        """Add a run that holds so many tokens, and will hold ``growth`` more after its further calls."""
        self._count(1, tokens, growth, further_calls)

    def remove(self, tokens: int, growth: int, further_calls: float) -> None:
        """Remove a run that was added with these figures."""
        self._count(-1, -tokens, -growth, further_calls)

    def _count(self, runs: int, tokens: int, growth: int, further_calls: float) -> None:
        key = round(_CLASSES * math.log2(1.0 + further_calls))
        found = self._classes.setdefault(key, _Class())
        found.runs += runs
        found.tokens += tokens
        found.growth += growth
        self._tokens += tokens
        if not found.runs:
            del self._classes[key]

    def most(self, held_tokens: int) -> float:
        """Return the most tokens needed, if what all hold now is this many, shared tokens once."""
        own = min(1.0, held_tokens / self._tokens) if self._tokens else 1.0
        most = left = float(held_tokens)
        by_end = [
            (2.0 ** (key / _CLASSES) - 1.0, self._classes[key]) for key in sorted(self._classes)
        ]
        per_call = sum(each.growth / calls for calls, each in by_end if calls)
        for calls, each in by_end:
            most = max(most, left + calls * per_call)
            left -= own * each.tokens
            if calls:
                per_call -= each.growth / calls
        return most
